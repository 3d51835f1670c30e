"""An engine and a trainer that do nothing, so that a run costs what its streams cost."""
