"""The server of the gateway: keys of sessions, the ASGI application, and where it listens."""
