"""samevec's own ONNX Runtime operators, built from ``native/`` and defined in its DEFINITION.md."""
