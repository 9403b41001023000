"""Watches one endpoint: polls its ``/metrics``, and finds out whether it is there at all.

Each endpoint has a watch of its own, with a short timeout, so none waits for another's. What is
not known is ``None`` and counted in ``missing``.
"""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections import Counter
from collections.abc import Callable

import aiohttp

from actors.endpoint_http import NETWORK_ERRORS, same_origin
from actors.reporting import EngineLoad
from runtime.exposition import EnginePage, PageHistory, read_page
from runtime.model_config import EndpointConfig
from runtime.window import Latencies

logger = logging.getLogger(__name__)

DOWN_PROBE_S = 1.0
KEPT_PERIODS = 2


class EndpointDown(ConnectionError):
    """The endpoint does not answer; its replica then reports nothing, and is no capacity."""


class EndpointWatch:
    """What is known of one endpoint.

    Args:
        endpoint: where it is.
        served: what the endpoint calls the model.
        http: the session to ask with.
        headers: go to the endpoint itself, and to no other host.
        num_active: how many calls of ours it holds now.
        clock: monotonic seconds.
    """

    def __init__(
        self,
        endpoint: EndpointConfig,
        served: str,
        http: aiohttp.ClientSession,
        headers: dict[str, str],
        num_active: Callable[[], int],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.missing: Counter[str] = Counter()
        self._endpoint = endpoint
        self._served = served
        self._http = http
        self._headers = headers
        self._num_active = num_active
        self._clock = clock
        self._timeout = aiohttp.ClientTimeout(total=endpoint.poll_timeout_s)
        self._history = PageHistory()
        self._newest: tuple[float, EnginePage, int] | None = None  # when, what, our own calls then
        self._alive_s = -math.inf
        self._refused = False
        self._was_down = True
        self._suspected = asyncio.Event()
        self._probed_s = -math.inf
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begin to poll; needs a running event loop."""
        self._task = asyncio.get_running_loop().create_task(self._run())

    async def stop(self) -> None:
        """End polling."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    @property
    def down(self) -> bool:
        """Whether it refuses connections, or has answered nothing for ``down_after_s``."""
        return self._refused or self._clock() - self._alive_s > self._endpoint.down_after_s

    def alive(self) -> None:
        """The endpoint gave a sign of life."""
        self._alive_s = self._clock()
        self._refused = False

    def suspect(self) -> None:
        """A call could not connect: find out now."""
        self._suspected.set()

    def load(self) -> EngineLoad:
        """The load of the endpoint now, that of its other clients included.

        The page is some time old, our own calls are known now: those of others are what the page
        had beyond our own. Without a page only our own count, and all of them as running.

        Raises:
            EndpointDown: there is nobody to have a load.
        """
        if self.down:
            raise EndpointDown(f"{self._endpoint.host} does not answer")
        own, page, own_then = self._num_active(), None, 0
        if self._newest is not None and self._clock() - self._newest[0] <= self._kept_s:
            _, page, own_then = self._newest
        if page is None or page.running is None or page.waiting is None:
            return EngineLoad(own, 0, page.kv_usage if page else None)
        others = max(0, page.running + page.waiting - own_then)
        waiting = min(page.waiting, own + others)
        return EngineLoad(own + others - waiting, waiting, page.kv_usage)

    def latencies(self) -> Latencies:
        """What calls took at the endpoint lately, whoever sent them."""
        return Latencies(*self._history.means(self._clock()))

    @property
    def _kept_s(self) -> float:
        return KEPT_PERIODS * self._endpoint.poll_period_s + self._endpoint.poll_timeout_s

    async def _run(self) -> None:
        while True:
            try:
                await self.look()
            except Exception:  # whatever an endpoint sends, the watch goes on
                logger.exception("endpoint %s: the watch failed", self._endpoint.host)
            self._suspected.clear()
            try:
                async with asyncio.timeout(self._endpoint.poll_period_s):
                    await self._suspected.wait()
            except TimeoutError:
                continue

    async def look(self) -> None:
        """One look: the metrics, and a probe where they say nothing and nothing else has."""
        if not await self._read_metrics() and self._probe_is_due():
            await self._probe()
        if self.down != self._was_down:
            self._was_down = self.down
            logger.warning("endpoint %s is %s", self._endpoint.host, "down" if self.down else "up")

    async def _read_metrics(self) -> bool:
        url = self._endpoint.metrics_page
        if url is None:
            return False
        own = self._num_active()
        headers = self._headers if same_origin(url, self._endpoint.url) else {}
        try:
            async with self._http.get(
                url, timeout=self._timeout, headers=headers, allow_redirects=False
            ) as response:
                if response.status != 200:
                    return self._miss("page")
                text = (await response.read()).decode(errors="replace")
            page = read_page(text, self._served)
        except (*NETWORK_ERRORS, ValueError):
            return self._miss("page")
        for name in page.missing:
            self._miss(name)
        now = self._clock()
        # The larger of the two: a call that came or went meanwhile is never taken for another's.
        self._newest = (now, page, max(own, self._num_active()))
        self._history.add(page, now)
        self.alive()
        return True

    def _miss(self, what: str) -> bool:
        self.missing[what] += 1
        if self.missing[what] == 1:
            page = self._endpoint.metrics_page
            logger.warning("endpoint %s: %s gives no %s", self._endpoint.host, page, what)
        return False

    def _probe_is_due(self) -> bool:
        now = self._clock()
        if self.down or self._suspected.is_set():
            return now - self._probed_s >= DOWN_PROBE_S
        silent_s = min(self._endpoint.probe_period_s, self._endpoint.down_after_s / 2)
        return now - self._alive_s >= silent_s

    async def _probe(self) -> None:
        self._probed_s = self._clock()
        try:
            async with self._http.get(
                f"{self._endpoint.url}/models",
                timeout=self._timeout,
                headers=self._headers,
                allow_redirects=False,
            ) as response:
                if response.status < 500:
                    self.alive()
        except aiohttp.ClientConnectorError:
            self._refused = True
        except NETWORK_ERRORS:
            return
