"""The command `toolkit serve`."""

from pathlib import Path

import click

from toolkit.config.click_types import FILE, Number


@click.command()
@click.option(
    "--host",
    default="127.0.0.1",
    show_default=True,
    help="Address to listen on. There is no password: whoever can reach it can use the server.",
)
@click.option(
    "--port",
    type=click.IntRange(0, 65535),
    default=8000,
    show_default=True,
    help="Port to listen on; 0: a free one.",
)
@click.option(
    "--endpoint",
    type=Number(0.1),
    default=0.8,
    show_default=True,
    help="Silence that ends an utterance, in seconds.",
)
@click.option("--system", help="The system of the bundle to use; default: the best that streams.")
@click.option("--fast", is_flag=True, help="Leave out rescoring with larger language models.")
@click.option(
    "--threads", type=click.IntRange(1), help="Threads that recognise; default: one per processor."
)
@click.option(
    "--clients",
    type=click.IntRange(1),
    default=10,
    show_default=True,
    help="Maximum number of clients at the same time; further ones are refused.",
)
@click.argument("model", type=FILE)
def serve(
    host: str,
    port: int,
    endpoint: float,
    system: str | None,
    fast: bool,
    threads: int | None,
    clients: int,
    model: Path,
) -> None:
    """Recognise speech live, on a web page.

    MODEL is a model bundle: the final/ folder of a run. Its best unidirectional LSTM or TDNN-F
    recognises; other systems need whole recordings. The page takes the microphone or an audio file,
    shows words while they are spoken, and loads nothing from the network. Programs can use the same
    WebSocket. Ctrl-C ends the server.

    \b
    Example:
      toolkit serve --port 8000 exp/demo/final
    """
    from toolkit.decode.bundle import Bundle, read_card
    from toolkit.decode.config import EndpointConfig
    from toolkit.decode.recogniser import load_recogniser
    from toolkit.environment import usable_cpus
    from toolkit.processes.devices import one_thread
    from toolkit.serve.protocol import Limits
    from toolkit.serve.server import ServeConfig, Server, is_loopback, run

    def report(line: str) -> None:
        click.echo(line, err=True)

    if not is_loopback(host):
        report(
            f"Warning: {host} can be reached from other machines, and there is no authentication:"
            " whoever reaches it can use it. Browsers open microphones only on pages of this"
            f" machine or by https; for your own use, `ssh -L {port}:localhost:{port} MACHINE`"
            " needs no --host"
        )
    # Load and compile before listening: the first client need not wait, and faults stop the start.
    bundle = Bundle(model).choose("stream", system)
    card = read_card(bundle)
    if card:
        report(str(card))
    config = ServeConfig(host, port, threads or usable_cpus(), Limits(clients))
    # Threads recognise in parallel; torch must not start more of its own in each.
    with one_thread():
        recogniser, endpoint_config = load_recogniser(bundle, fast=fast), EndpointConfig(endpoint)
        recogniser.warm_up(endpoint_config)
        name = str(card or bundle.name)
        run(Server(recogniser, endpoint_config, name, config, report), report)
