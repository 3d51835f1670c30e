"""A web shop: its catalogue, its search, its pages, and the domain of its tasks."""
