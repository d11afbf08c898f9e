"""Acoustic models for other programs: TorchScript and ONNX."""
