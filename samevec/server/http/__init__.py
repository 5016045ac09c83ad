"""The HTTP application: routes, bodies, middleware, connections."""
