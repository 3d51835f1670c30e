"""Context policies: what becomes of a conversation that gets too long for the policy's context."""
