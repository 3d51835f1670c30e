"""A headless Chromium, and the interface served to it in this process."""

import shutil
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from selenium.webdriver import Chrome
from selenium.webdriver.chrome.options import Options
from selenium.webdriver.chrome.service import Service
from selenium.webdriver.common.by import By
from selenium.webdriver.remote.webelement import WebElement
from selenium.webdriver.support.ui import WebDriverWait

from rollart_flow.gateway.server.listening import loopback_socket, uvicorn_for
from rollart_flow.ui.app import ui_app
from rollart_flow.ui.catalog import RunCatalog
from rollart_flow.ui.guard import Readers

WAIT_S = 60.0
_OPTIONS = (
    "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage",
    "--window-size=1300,1000",
)  # fmt: skip
_SHOWN = (
    "return !!document.querySelector('main h1, main .error')"
    " && !document.querySelector('main[aria-busy]')"
)


def missing_programs() -> list[str]:
    """Programs that the tests of pages need and this machine lacks."""
    return [name for name in ("chromium", "chromedriver") if shutil.which(name) is None]


@contextmanager
def serving(catalog: RunCatalog) -> Iterator[str]:
    """Serve runs in a thread; yields the address without a slash at its end."""
    server = uvicorn_for(ui_app(catalog, Readers.at("127.0.0.1", None)))
    with loopback_socket("127.0.0.1", 0) as listener:
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
        thread.start()
        try:
            yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        finally:
            server.should_exit = True
            thread.join()


class Browser:
    """A browser with one window, which shows pages of one server."""

    def __init__(self, address: str, shots: Path) -> None:
        options = Options()
        options.binary_location = shutil.which("chromium") or ""
        for option in _OPTIONS:
            options.add_argument(option)
        options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
        self.driver = Chrome(options, Service(shutil.which("chromedriver")))
        self.address, self._shots = address, shots

    def open(self, path: str) -> None:
        """Open a page and wait until it is shown."""
        self.driver.get("about:blank")
        self.driver.get(self.address + path)
        self.wait(lambda: self.run(_SHOWN))

    def wait(self, condition: Callable[[], object]) -> None:
        """Wait until a condition holds, which may fail while a page changes."""
        WebDriverWait(self.driver, WAIT_S, ignored_exceptions=[Exception]).until(
            lambda _: condition()
        )

    def run(self, script: str, *arguments: object) -> Any:
        """Return the value of a script in the page."""
        return self.driver.execute_script(script, *arguments)

    def gives(self, script: str, argument: object, value: object) -> None:
        """Wait until a script with an argument has a value."""
        self.wait(lambda: self.run(script, argument) == value)

    def one(self, selector: str) -> WebElement:
        """Return the first element of a selector, once there is one."""
        self.wait(lambda: self.all(selector))
        return self.all(selector)[0]

    def all(self, selector: str) -> list[WebElement]:
        """Return the elements of a selector."""
        return self.driver.find_elements(By.CSS_SELECTOR, selector)

    def texts(self, selector: str) -> list[str]:
        """Return the texts of the elements of a selector."""
        script = "return [...document.querySelectorAll(arguments[0])].map((e) => e.textContent)"
        return list(self.run(script, selector))

    def keys(self, text: str) -> None:
        """Press keys wherever the focus is."""
        self.driver.switch_to.active_element.send_keys(text)

    @property
    def path(self) -> str:
        """Path, query and part of the current address."""
        return self.driver.current_url.removeprefix(self.address)

    def went(self, path: str) -> None:
        """Wait until an address is shown."""
        self.wait(lambda: self.path == path and self.run(_SHOWN))

    def complaints(self) -> list[str]:
        """Return what the browser complained of since the last call: errors and violations."""
        # selenium does not declare the types of this method
        log = self.driver.get_log("browser")  # type: ignore[no-untyped-call]
        return [entry["message"] for entry in log if entry["level"] in ("SEVERE", "WARNING")]

    def prefer(self, scheme: str) -> None:
        """Let the page see that its reader prefers light or dark colors."""
        features = [{"name": "prefers-color-scheme", "value": scheme}]
        self.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})

    def shoot(self, name: str) -> Path:
        """Save a picture of the whole page."""
        height = self.run("return document.documentElement.scrollHeight")
        self.driver.set_window_size(1300, min(max(height + 140, 700), 4000))
        path = self._shots / f"{name}.png"
        assert self.driver.save_screenshot(str(path))
        self.driver.set_window_size(1300, 1000)
        return path

    def close(self) -> None:
        """End the browser and its driver."""
        self.driver.quit()
