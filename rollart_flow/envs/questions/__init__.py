"""Questions with verifiable answers, from a table of rows."""
