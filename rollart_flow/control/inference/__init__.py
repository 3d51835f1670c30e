"""Control of a run's inference workers, and routing of requests to them."""
