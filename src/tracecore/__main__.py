import sys

from tracecore.cli.main import main

sys.exit(main())
