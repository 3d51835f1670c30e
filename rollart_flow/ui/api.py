"""The answers of `/api/...`: rows of views as JSON.

    runs?offset=ROW             {title, runs: [{name, uri, status, ..., steps}], more, query}
    compare?run=NAME&run=NAME   {runs, settings: [{name, values}], views: {NAME: {VIEW: rows}}}
    run/NAME/about              {name, uri, status, error, pipeline, parent, settings, ...}
    run/NAME/sources            {sources: {ADDRESS: NAME}} of what it learns from; null: not served
    run/NAME/waits              {processes}: what each process of a running run waits for
    run/NAME/now                {cut, status}; `cut` is the seq of the newest row
    run/NAME/page/PAGE          {cut, newest, status, handle, views: {VIEW: rows}}
    run/NAME/sql?q=QUERY        the same with the view "sql"
    run/NAME/sql.csv?q=QUERY    up to `MOST_CSV_ROWS` rows of the query as a file
    run/NAME/cell?view=VIEW&column=COLUMN&offset=ROW    {value}: one value, whole
    tables                      {TABLE: [{name, type, comment}]}
    run/NAME/image/ID           an image that the run stored, as PNG

PAGE is one of `views.pages`, `handle` has the words for the run in a shell, `rows` is described in
`encoding`. All of a run take `at=SEQ`. A page takes the parameters of its views (`step=3`, or
`VIEW.first=10` for one view), `VIEW.offset` and `VIEW.sort` for each view, and `views=VIEW,VIEW`
for some of them only. Everything is read at one moment, and an error is {error: one line}.
"""

import logging
from collections.abc import Callable
from dataclasses import asdict
from typing import Any

import anyio.to_thread
from starlette.datastructures import QueryParams
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from rollart_flow.errors import QueryError, RollartError, RunNotFoundError, SettingsError
from rollart_flow.schema import TABLES, delta_schema, stored_schema
from rollart_flow.store import Snapshot
from rollart_flow.store.pins import recorded_pins
from rollart_flow.store.waits import read_waits
from rollart_flow.types.images import checked_image_id
from rollart_flow.ui.catalog import RunCatalog
from rollart_flow.ui.encoding import csv_text, encode_rows, encode_value
from rollart_flow.ui.guard import refusal
from rollart_flow.ui.live_run import LiveRun
from rollart_flow.ui.several_runs import compared, run_list
from rollart_flow.views.pages import PAGES
from rollart_flow.views.view import Page, View, ViewReader, ViewRows

_AT_ONCE = 4
"""Requests that read at a time; polars itself uses all cores for one."""
MOST_CSV_ROWS = 100_000
_LOG = logging.getLogger(__name__)


class UiApi:
    """The answers, from the runs of a catalog."""

    def __init__(self, catalog: RunCatalog) -> None:
        self._catalog = catalog
        self._limiter: anyio.CapacityLimiter | None = None

    def routes(self) -> list[Route]:
        """Return the routes below `/api`."""
        answers = {
            "/runs": self._runs,
            "/compare": self._compare,
            "/run/{run}/about": self._about,
            "/run/{run}/sources": self._sources,
            "/run/{run}/waits": self._waits,
            "/run/{run}/now": self._now,
            "/run/{run}/page/{page}": self._page,
            "/run/{run}/cell": self._cell,
            "/run/{run}/sql": self._sql,
            "/run/{run}/sql.csv": self._csv,
            "/run/{run}/image/{image}": self._image,
            "/tables": self._tables,
        }
        return [Route(path, self._answering(answer)) for path, answer in answers.items()]

    def _answering(self, answer: Callable[[Request], Any]) -> Callable[[Request], Any]:
        """Return an endpoint that answers in a thread, and turns errors into a line."""

        async def endpoint(request: Request) -> Response:
            if self._limiter is None:
                self._limiter = anyio.CapacityLimiter(_AT_ONCE)
            try:
                found = await anyio.to_thread.run_sync(answer, request, limiter=self._limiter)
            except RunNotFoundError as error:
                return refusal(404, str(error))
            except (QueryError, SettingsError) as error:
                return refusal(400, str(error))
            except (RollartError, ConnectionError) as error:
                return refusal(500, str(error))
            except Exception:  # noqa: BLE001  a bug becomes an answer, too
                _LOG.exception("a request failed")
                return refusal(500, "the server failed to answer; its log says why")
            return found if isinstance(found, Response) else JSONResponse(found)

        return endpoint

    def _runs(self, request: Request) -> dict[str, Any]:
        return run_list(self._catalog, _number(request.query_params, "offset") or 0)

    def _compare(self, request: Request) -> dict[str, Any]:
        names = request.query_params.getlist("run")
        return compared(self._catalog, names)

    def _about(self, request: Request) -> dict[str, Any]:
        return described(self._live(request)) | {"handle": self._words(request)}

    def _now(self, request: Request) -> dict[str, Any]:
        live = self._live(request)
        return {"cut": live.newest().seq, "status": live.run.status}

    def _sources(self, request: Request) -> dict[str, Any]:
        pins = self._live(request).read(recorded_pins)
        found = {each.run for pinned in pins.values() for each in pinned}
        return {"sources": {uri: self._catalog.name_of(uri) for uri in sorted(found)}}

    def _waits(self, request: Request) -> dict[str, Any]:
        reports = read_waits(self._live(request).run.uri)
        return {"processes": [asdict(report) for report in reports]}

    def _page(self, request: Request) -> dict[str, Any]:
        name, query = request.path_params["page"], request.query_params
        if name not in PAGES:
            raise RunNotFoundError(f"no page {name[:80]!r}; there are {', '.join(PAGES)}")
        wanted = query.get("views")
        views = [view for view in PAGES[name] if wanted is None or view.name in wanted.split(",")]

        def read(reader: ViewReader) -> dict[str, ViewRows]:
            return {v.name: reader.read(v, _values(query, v), _part(query, v)) for v in views}

        return self._read(request, read)

    def _read(
        self, request: Request, read: Callable[[ViewReader], dict[str, ViewRows]]
    ) -> dict[str, Any]:
        live = self._live(request)

        def answer(snapshot: Snapshot) -> dict[str, Any]:
            rows = read(ViewReader(snapshot))
            views = {name: encode_rows(each) for name, each in rows.items()}
            return {"cut": snapshot.seq, "newest": live.newest().seq, "views": views}

        known = {"status": live.run.status, "handle": self._words(request)}
        return live.read(answer, _number(request.query_params, "at")) | known

    def _cell(self, request: Request) -> dict[str, Any]:
        query = request.query_params
        name, column = query.get("view", ""), query.get("column", "")
        part = Page(_number(query, "offset") or 0, query.get("sort", ""), rows=1)

        def read(snapshot: Snapshot) -> ViewRows:
            reader = ViewReader(snapshot)
            if name == "sql":
                return reader.sql(query.get("q", ""), part)
            view = _view(name)
            return reader.read(view, _values(query, view), part)

        frame = self._live(request).read(read, _number(query, "at")).frame
        if frame.is_empty() or column not in frame.columns:
            raise QueryError(f"{name} has no value {column!r} in row {part.offset}")
        return {"value": encode_value(frame.item(0, column))}

    def _sql(self, request: Request) -> dict[str, Any]:
        query = request.query_params
        part = Page(_number(query, "sql.offset") or 0)
        return self._read(request, lambda reader: {"sql": reader.sql(query.get("q", ""), part)})

    def _csv(self, request: Request) -> Response:
        query = request.query_params
        part = Page(rows=MOST_CSV_ROWS)
        at = _number(query, "at")
        rows = self._live(request).read(lambda s: ViewReader(s).sql(query.get("q", ""), part), at)
        name = 'attachment; filename="query.csv"'
        return Response(
            csv_text(rows.frame),
            media_type="text/csv",
            headers={"Content-Disposition": name, "X-Rows-Left-Out": str(rows.more).lower()},
        )

    def _image(self, request: Request) -> Response:
        live, name = self._live(request), request.path_params["image"]
        try:
            image = live.run.image(checked_image_id(name))
        except ValueError as error:
            raise RunNotFoundError(f"no image {name[:80]!r}: this is no name of one") from error
        return Response(image.png, media_type="image/png")

    def _tables(self, request: Request) -> dict[str, Any]:
        return {
            table: [
                {
                    "name": column.name,
                    "type": str(column.type),
                    "comment": described_by.metadata["comment"],
                }
                for column, described_by in zip(
                    stored_schema(table), delta_schema(table).fields, strict=True
                )
            ]
            for table in TABLES
        }

    def _words(self, request: Request) -> list[str]:
        return self._catalog.words(request.path_params["run"])

    def _live(self, request: Request) -> LiveRun:
        return self._catalog.open(request.path_params["run"])


def described(live: LiveRun) -> dict[str, Any]:
    """Return what `run.json` says of a run."""
    info = live.run.info
    return {
        "name": info.name,
        "uri": live.run.uri,
        "status": info.status,
        "error": info.error,
        "pipeline": info.pipeline,
        "seed": info.seed,
        "parent": None
        if info.parent is None
        else {"uri": info.parent.uri, "step": info.parent.step},
        "created_at": info.created_at.isoformat(),
        "overrides": dict(info.overrides),
        "settings": dict(info.settings),
        "versions": dict(info.versions),
    }


def _view(name: str) -> View:
    for views in PAGES.values():
        for view in views:
            if view.name == name:
                return view
    raise RunNotFoundError(f"no view {name[:80]!r}")


def _values(query: QueryParams, view: View) -> dict[str, str]:
    """Return the values of a view's parameters; those with its name go before the others."""
    own = {name: query.get(f"{view.name}.{name}", query.get(name)) for name in view.parameters}
    return {name: value for name, value in own.items() if value is not None}


def _part(query: QueryParams, view: View) -> Page:
    return Page(_number(query, f"{view.name}.offset") or 0, query.get(f"{view.name}.sort", ""))


def _number(query: QueryParams, name: str) -> int | None:
    text = query.get(name)
    if text is None:
        return None
    if not text.isdecimal() or len(text) > 15:
        raise QueryError(f"{name} is {text[:40]!r}, which is no number from 0")
    return int(text)
