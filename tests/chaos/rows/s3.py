"""A run in S3 whose server is away, slow, busy, or takes a put and does not say so."""

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from unittest.mock import patch

from tests.chaos.faults.proxy import Action, Fault, Proxy, always, only, some
from tests.chaos.held import Held
from tests.chaos.matrix import scenario
from tests.chaos.place import Place, ended, last_line
from tests.s3.server import BUCKET, s3_server

ROW = "S3 away or faulty"
STEPS = 20


@contextmanager
def through_proxy(folder: Path) -> Iterator[tuple[Place, Proxy]]:
    """A store in S3 whose runs reach the server through a proxy; this process asks it directly."""
    with s3_server(folder / "server") as server, Proxy(server.endpoint) as proxy:
        server.client().create_bucket(Bucket=BUCKET)
        direct = {**server.environment(), "XDG_CACHE_HOME": str(folder / "cache of the check")}
        told = {**server.environment(), "AWS_ENDPOINT_URL_S3": proxy.url}
        with patch.dict(os.environ, direct):
            yield Place(folder, store=f"s3://{BUCKET}/runs", environment=told), proxy


def faulty(folder: Path, fault: Fault, steps: int = STEPS) -> Held:
    """Run from the first step on through a proxy that makes a fault."""
    with through_proxy(folder) as (place, proxy):
        with place.run(steps=steps) as driver:
            place.wait_for_tenth(driver, 2)
            with proxy.making(fault):
                place.record.fault("from now on")
                ended(driver)
        assert proxy.injected, "the run ended before the first fault"
        return replace(place.held(), note=f"{proxy.injected} requests hit")


def away(folder: Path, seconds: float, fault: Fault, *, stops: bool = False) -> Held:
    """Let the server be away: the run goes on afterwards, or stops with an error and is resumed."""
    with through_proxy(folder) as (place, proxy):
        with place.run(steps=STEPS) as driver:
            place.wait_for_tenth(driver, 2)
            with proxy.making(fault):
                time.sleep(seconds)
            place.record.fault("back")
            code = ended(driver, int(stops))
        if code:
            assert "does not answer" in last_line(driver), driver.said
            place.finish()
        went_on = "went on" if code == 0 else f"stopped: {last_line(driver)}"
        return replace(place.held(), note=went_on)


@scenario(ROW, waits=True)
def s3_away_30_s(folder: Path) -> Held:
    return away(folder, 30, always(Action.RESET))


@scenario(ROW, waits=True)
def s3_away_90_s(folder: Path) -> Held:
    return away(folder, 90, always(Action.RESET))


@scenario(ROW, limit_s=900, waits=True)
def s3_away_10_min(folder: Path) -> Held:
    return away(folder, 600, always(Action.RESET), stops=True)


@scenario(ROW, waits=True)
def s3_black_hole_90_s(folder: Path) -> Held:
    return away(folder, 90, always(Action.HOLE))


@scenario(ROW)
def s3_busy(folder: Path) -> Held:
    """One of ten requests is answered with 503."""
    return faulty(folder, some(0.1, Action.BUSY))


@scenario(ROW)
def s3_resets(folder: Path) -> Held:
    return faulty(folder, some(0.3, Action.RESET))


@scenario(ROW, limit_s=480, waits=True)
def s3_slow(folder: Path) -> Held:
    """One of ten requests is two seconds late, so that a step takes several seconds more."""
    return faulty(folder, some(0.1, Action.DELAY), steps=10)


@scenario(ROW)
def s3_answers_of_puts_lost(folder: Path) -> Held:
    """Three of ten puts are taken, and their answers are lost."""
    return faulty(folder, only(some(0.3, Action.LOSE), "PUT"))


@scenario(ROW)
def s3_answers_of_the_lease_lost(folder: Path) -> Held:
    """No renewal of the lease is ever answered, for longer than a lease lasts."""
    with through_proxy(folder) as (place, proxy):
        with place.run(steps=STEPS) as driver:
            place.wait_for_tenth(driver, 2)
            with proxy.making(only(always(Action.LOSE), "PUT", "lease.json")):
                ended(driver)
        return place.held()
