"""The export room: pinned files in, a checked ONNX artifact out."""
