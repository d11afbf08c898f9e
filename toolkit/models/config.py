"""Sizes of the networks."""

from dataclasses import dataclass
from typing import Annotated, Literal

from toolkit.config.fields import (
    LayerSize,
    NumClasses,
    NumLayers,
    PositiveInt,
    Range,
    Settings,
    ShareBelowOne,
)
from toolkit.features.config import LOW_RATE_FACTOR


@dataclass(frozen=True)
class LstmConfig(Settings):
    """Layer sizes of an `LstmModel`."""

    input_dim: LayerSize = 192
    """D, values per low-rate frame: 3 stacked frames of 64 log-mel energies (C5)."""
    output_dim: NumClasses = 3183
    """C, number of targets: 3,183 senones (C3). Training sets it to what its alignments need."""
    hidden: LayerSize = 768
    """Cells per layer; 768 (C6)."""
    layers: NumLayers = 5
    """Number of LSTM layers; 5 (C6)."""
    lookahead: Annotated[int, Range(0, 1 << 16)] = 3
    """Look-ahead: number of future input frames (of 30 ms) that a frame's output needs; 3 (C6)."""
    dropout: ShareBelowOne = 0.0
    """Probability of dropping a value between two layers; 0 in the paper."""


@dataclass(frozen=True)
class BlstmConfig(Settings):
    """Layer sizes of a `BlstmModel`."""

    input_dim: LayerSize = 192
    """D, values per low-rate frame: 3 stacked frames of 64 log-mel energies (C5)."""
    output_dim: NumClasses = 3183
    """C, number of targets: 3,183 senones (C3). Training sets it to what its alignments need."""
    hidden: LayerSize = 768
    """Cells per layer and direction; 768 (C9)."""
    layers: NumLayers = 5
    """Number of bidirectional layers; 5 (C9). With 192 inputs and 3,183 targets the model has 67.5
    million parameters; the paper says 78 million."""
    dropout: ShareBelowOne = 0.0
    """Probability of dropping a value between two layers; 0 in the paper."""

    @property
    def lookahead(self) -> int:
        """Input frames needed after the last one: none, as whole utterances are given."""
        return 0


@dataclass(frozen=True)
class TdnnfConfig(Settings):
    """Layer sizes and strides of a `TdnnfModel`."""

    input_dim: LayerSize = 192
    """D, values per low-rate frame: 3 stacked frames of 64 log-mel energies (C5)."""
    output_dim: NumClasses = 3183
    """C, number of targets: 3,183 senones (C3). Training sets it to what its alignments need."""
    hidden: LayerSize = 1024
    """Values per frame between layers."""
    bottleneck: LayerSize = 128
    """Values per frame inside a layer."""
    strides: tuple[Annotated[int, Range(0, 1000)], ...] = (1, 1, 1, 0, 3, 3, 3, 3, 3, 3, 3, 3)
    """Raw frames (10 ms) of context on either side of each layer. Layers of stride 1 come first and
    run at 100 Hz. Layers whose stride is 0 or a multiple of 3 run at 33 Hz."""
    final: LayerSize = 192
    """Values per frame before the output layer."""
    bypass: ShareBelowOne = 0.66
    """Factor by which a layer's input is multiplied before it is added to the layer's output."""
    dropout: ShareBelowOne = 0.0
    """In training, a layer's outputs are multiplied by random factors between 1 minus this and 1
    plus this. Each channel of each row of the batch has its own factor for all frames."""

    def check(self) -> None:
        """Raise a ValueError if strides or sizes do not fit each other."""
        if self.input_dim % LOW_RATE_FACTOR:
            raise ValueError(f"`input_dim` is {self.input_dim} but must be a multiple of 3")
        if not self.strides or list(self.strides[: self.at_full_rate]) != [1] * self.at_full_rate:
            raise ValueError(
                f"`strides` are {self.strides}, but strides of 1 must come before all others, and "
                "at least one stride is needed"
            )
        for stride in self.strides[self.at_full_rate :]:
            if stride % LOW_RATE_FACTOR:
                raise ValueError(f"a stride is {stride}, but each must be 1 or a multiple of 3")
        if self.bottleneck > self.hidden:
            raise ValueError(
                f"`bottleneck` is {self.bottleneck} but must be at most `hidden`, {self.hidden}"
            )

    @property
    def layers(self) -> int:
        """Number of factorised layers."""
        return len(self.strides)

    @property
    def at_full_rate(self) -> int:
        """Number of layers that run at 100 frames per second."""
        return sum(stride == 1 for stride in self.strides)

    @property
    def raw_context(self) -> int:
        """Raw frames that an output depends on, before and after the middle one of its three."""
        return 1 + sum(self.strides)

    @property
    def context(self) -> int:
        """Low-rate frames on either side of a chunk that its outputs depend on."""
        return -(-(self.raw_context - 1) // LOW_RATE_FACTOR)

    @property
    def lookahead(self) -> int:
        """Input frames needed after the last one: none, as whole utterances are given."""
        return 0


@dataclass(frozen=True)
class CtcConfig(Settings):
    """Layer sizes of a `CtcModel`; the defaults are the paper's, with 25.6 million parameters."""

    input_dim: LayerSize = 93
    """D, values per frame of 10 ms: 80 log-mel energies and 13 cepstra (A1)."""
    output_dim: Annotated[int, Range(2, 10_000_000)] = 30
    """C, output units, the blank among them; 30 characters (A16). Training sets it."""
    channels: tuple[LayerSize, ...] = (600,)
    """Output channels of each convolution. The paper has one convolution with 600 (A12), and 1 to 3
    in its variants (A14; Deep Speech 2: 1,280)."""
    kernels: tuple[Annotated[int, Range(1, 1000)], ...] = (11,)
    """Kernel size of each convolution, in frames; 11 (A12)."""
    strides: tuple[Annotated[int, Range(1, 1000)], ...] = (2,)
    """Stride of each convolution, in frames; 2 (A12)."""
    activation: Literal["relu", "none"] = "relu"
    """Activation after each convolution; the paper names none (Deep Speech 2: clipped ReLU)."""
    lstm_layers: NumLayers = 5
    """Number of LSTM layers. The paper has 5 (A13), and 1 to 7 in its variants (A14)."""
    hidden: LayerSize = 800
    """Cells per LSTM layer and direction; 800 (A13; Deep Speech 2: 1,510)."""
    bidirectional: bool = False
    """Whether the LSTMs are bidirectional. Unidirectional ones need not wait for the end of the
    utterance (A13)."""
    dropout: ShareBelowOne = 0.05
    """Probability of dropping a value between two layers; 0.05 (A13)."""

    def check(self) -> None:
        """Raise a ValueError if lists differ in length, or a stride exceeds its kernel."""
        if not len(self.channels) == len(self.kernels) == len(self.strides) > 0:
            raise ValueError("`channels`, `kernels` and `strides` need one value per convolution")
        if any(s > k for s, k in zip(self.strides, self.kernels, strict=True)):
            raise ValueError(f"`strides` are {self.strides} but must not exceed the kernel sizes")

    @property
    def frames_needed(self) -> int:
        """Shortest input, in frames, that gives an output; 11 in the paper."""
        frames = 1
        for kernel, stride in zip(reversed(self.kernels), reversed(self.strides), strict=True):
            frames = (frames - 1) * stride + kernel
        return frames

    @property
    def subsampling(self) -> int:
        """Input frames per output frame; 2 in the paper."""
        product = 1
        for stride in self.strides:
            product *= stride
        return product


@dataclass(frozen=True)
class WordLstmConfig(Settings):
    """Layer sizes of a `WordLstm`."""

    vocabulary: PositiveInt = 20_000
    """V, number of words, with <s>, </s> and <UNK>. Training sets it to what its text needs."""
    hidden: LayerSize = 256
    """H, cells per layer, and values per word vector."""
    layers: NumLayers = 1
    """Number of LSTM layers."""
    dropout: ShareBelowOne = 0.3
    """Probability of dropping a value of a word vector and of a layer's output."""
