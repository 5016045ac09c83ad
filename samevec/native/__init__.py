"""samevec's own ONNX Runtime operators, built from ``native/``; DEFINITION.md there says what they compute."""
