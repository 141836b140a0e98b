"""The Model Context Protocol: incidents for AI assistants, on stdio and over HTTP."""
