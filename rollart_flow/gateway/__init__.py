"""The gateway: a provider-compatible endpoint that captures what an unchanged agent samples.

`core` holds sessions and branches, and is pure asyncio like the control plane. `wires` translates
the four wires of providers from and to it, and `server` listens.
"""
