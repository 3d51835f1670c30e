"""The application of `rollart ui`: its files, its answers, and the guard around them."""

from pathlib import Path

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import FileResponse, RedirectResponse, Response
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles
from starlette.types import ASGIApp

from rollart_flow.ui.api import UiApi
from rollart_flow.ui.catalog import RunCatalog
from rollart_flow.ui.guard import LOGIN, Readers, UiGuard, refusal

STATIC = Path(__file__).parent / "static"
PAGES = ("/runs", "/compare", "/run/{run}", "/run/{run}/{rest:path}")
"""Addresses of pages; all of them are one file, whose script shows what the address says."""


def ui_app(catalog: RunCatalog, readers: Readers) -> ASGIApp:
    """Return the application.

    Args:
        catalog: the runs that it shows.
        readers: who may read them.
    """
    routes = [
        Route("/", _to_runs),
        Route(LOGIN, _login, methods=["GET"]),
        Mount("/api", routes=UiApi(catalog).routes()),
        Mount("/static", _OwnFiles(directory=STATIC)),
        *(Route(path, _index) for path in PAGES),
    ]
    app = Starlette(routes=routes, exception_handlers={404: _nothing})
    return UiGuard(app, readers)


class _OwnFiles(StaticFiles):
    """The files of the interface, which a browser asks for again after an upgrade."""

    def file_response(self, *args: object, **kwargs: object) -> Response:
        answer = super().file_response(*args, **kwargs)  # type: ignore[arg-type]
        answer.headers["Cache-Control"] = "no-cache"
        return answer


async def _to_runs(request: Request) -> Response:
    return RedirectResponse("/runs", 307)


async def _index(request: Request) -> Response:
    return FileResponse(STATIC / "index.html", headers={"Cache-Control": "no-cache"})


async def _login(request: Request) -> Response:
    return FileResponse(STATIC / "login.html")


async def _nothing(request: Request, error: Exception) -> Response:
    return refusal(404, "there is nothing at this address")
