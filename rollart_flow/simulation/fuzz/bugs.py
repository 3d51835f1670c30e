from contextlib import contextmanager
@contextmanager
def planted(name):
    yield
