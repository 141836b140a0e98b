"""`tracecore completion`: what a shell needs to complete commands, options and files."""

from __future__ import annotations

import click


@click.command("completion")
@click.argument("shell", type=click.Choice(["bash", "fish", "zsh"]))
def command(shell: str) -> int:
    """Print the completion script of a shell.

    \b
    bash: tracecore completion bash > ~/.local/share/bash-completion/completions/tracecore
    zsh:  tracecore completion zsh > ~/.zfunc/_tracecore      (a directory of fpath)
    fish: tracecore completion fish > ~/.config/fish/completions/tracecore.fish
    """
    from click.shell_completion import get_completion_class

    from tracecore.cli.main import root

    kind = get_completion_class(shell)
    assert kind is not None
    complete = kind(root, {}, "tracecore", "_TRACECORE_COMPLETE")
    # What `source` gives, without its question to the shell about its version.
    click.echo(complete.source_template % complete.source_vars())
    return 0
