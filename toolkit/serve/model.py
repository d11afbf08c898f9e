"""A bundle whose streams are cut into utterances at pauses."""

import torch

from toolkit.decode.stream_latency import Streaming
from toolkit.decode.streaming import EndpointConfig
from toolkit.decode.streaming_bundle import StreamingBundle


class EndpointedBundle:
    """Begins the streams of clients, with endpoints and times of words.

    Args:
      bundle: the models.
      endpoint: when utterances end.
    """

    def __init__(self, bundle: StreamingBundle, endpoint: EndpointConfig) -> None:
        self._bundle, self._endpoint = bundle, endpoint
        first = self.stream()  # loads what finds times, before several threads would
        first.push(torch.zeros(self.sampling_rate))
        first.finish()

    @property
    def sampling_rate(self) -> int:
        """The rate in Hz of the samples that streams take."""
        return self._bundle.sampling_rate

    def stream(self) -> Streaming:
        """Begin a stream."""
        return self._bundle.stream(self._endpoint, details=True)
