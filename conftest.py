"""Before any test module is imported: some import onnxruntime first, and samevec switches its telemetry off."""

import samevec  # noqa: F401
