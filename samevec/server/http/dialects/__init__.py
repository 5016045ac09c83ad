"""The dialects spoken over HTTP, one module each: what their routes take, read strictly, and what they answer."""
