"""A bundle that recognises streams: its models are loaded once, each stream has its own state."""

from pathlib import Path

from toolkit.decode.bundle.ctc.recogniser import CtcRecogniser
from toolkit.decode.bundle.ctc.settings import is_ctc
from toolkit.decode.bundle.ctc.streaming import CtcStreamingRecogniser
from toolkit.decode.bundle.recogniser import Recogniser
from toolkit.decode.stream_latency import Streaming
from toolkit.decode.streaming import EndpointConfig, StreamingRecogniser


class StreamingBundle:
    """What the streams of one bundle share; loaded and compiled, so that none need wait for it.

    Streams may be recognised in several threads, each stream in one at a time.

    Args:
      bundle: the folder of a system, as `toolkit.decode.bundle.folder.find_system` finds one that
        can stream.
      fast: leave out the passes that rescore.

    Raises:
      BundleError: the folder is not a bundle of a network, or the network needs the whole
        utterance.
    """

    def __init__(self, bundle: Path, fast: bool = False) -> None:
        self._recogniser: CtcRecogniser | Recogniser
        if is_ctc(bundle):
            self._kind, self._recogniser = CtcStreamingRecogniser, CtcRecogniser(bundle, fast=fast)
        else:
            self._kind, self._recogniser = StreamingRecogniser, Recogniser(bundle, fast=fast)
        self._kind.warm_up(self._recogniser)

    @property
    def sampling_rate(self) -> int:
        """The rate in Hz of the samples that streams take."""
        return self._recogniser.frontend_config.sampling_rate

    def stream(self, endpoint: EndpointConfig | None = None, details: bool = False) -> Streaming:
        """Begin a stream.

        Args:
          endpoint: when utterances end; None: only at the end of the stream.
          details: find times and confidences of the words of final utterances.
        """
        return self._kind(self._recogniser, endpoint, details)
