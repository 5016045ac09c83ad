"""What runs a microbatch: ONNX Runtime, fixed shapes, a second choice, a fake."""
