"""The command `toolkit serve`."""

from pathlib import Path

import click

from toolkit.config.click_types import FILE, Number


@click.command()
@click.option(
    "--host",
    default="127.0.0.1",
    show_default=True,
    help="Address to listen on. There is no password: anyone who can reach this address can use "
    "the server.",
)
@click.option(
    "--port",
    type=click.IntRange(0, 65535),
    default=8000,
    show_default=True,
    help="Port to listen on. 0 picks a free port.",
)
@click.option(
    "--endpoint",
    type=Number(0.1),
    default=0.8,
    show_default=True,
    help="Length of the silence that ends an utterance, in seconds.",
)
@click.option(
    "--system",
    help="Name of a system in the bundle; default: the best one that supports streaming.",
)
@click.option("--fast", is_flag=True, help="Do not rescore with larger language models.")
@click.option(
    "--threads", type=click.IntRange(1), help="Number of recognition threads; default: one per CPU."
)
@click.option(
    "--clients",
    type=click.IntRange(1),
    default=10,
    show_default=True,
    help="Maximum number of simultaneous clients. The server refuses further clients.",
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

    MODEL is a model bundle: the final/ folder of a run. The server uses the best unidirectional
    LSTM or TDNN-F of the bundle, because other systems need whole recordings. The page reads sound
    from the microphone or an audio file, shows words while they are spoken, and loads nothing from
    other sites. Other programs can use the page's WebSocket too. Ctrl-C stops the server.

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
            f"Warning: other machines can reach {host}, and there is no authentication: anyone who"
            " can reach the server can use it. Browsers allow the microphone only on pages from"
            " localhost or over https. For your own use, leave out --host and forward the port with"
            f" `ssh -L {port}:localhost:{port} MACHINE`"
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
