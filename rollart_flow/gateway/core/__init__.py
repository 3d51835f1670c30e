"""Sessions of captured agents: calls, branches, retries; pure asyncio like the control plane."""
