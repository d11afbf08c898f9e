"""Export of acoustic models to TorchScript and ONNX."""
