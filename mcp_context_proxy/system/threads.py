"""Concurrency: blocking work in threads, writes in batches, and requests that need no task while they wait.

Values that threads and tasks remember for one another, such as the latest requests, have a bound here.

The system may have no thread left: a limit on processes, for a user or a container, counts threads, too, and
servers that start may take the last of them. The work then waits and is tried again; an error would end the
owner of the work, at worst the proxy, although a thread may be free a moment later.

The import of large modules is here as well, each once and in a thread.

A task is started and resumed by the event loop, each time in a step of its own, and every scope within it is
kept in tables of the loop: for a call that is passed on, that costs more than all else. A `Flight` runs its
coroutine at once instead, in the step of whoever starts it. When the coroutine awaits a `Reply`, whoever has
the reply resumes it, in the step in which that came: a server, or one of the `Workers` that search. When it
awaits anything else, such as any other thread, it goes on in a task.

Scopes, task groups and locks of anyio belong to tasks. Code that a flight may run awaits `in_task` before it
opens one, or opens a `Cancellable`.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import logging
import os
import threading
import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Coroutine, Generator
from concurrent.futures import Future, ThreadPoolExecutor
from contextvars import Context, ContextVar, copy_context
from types import TracebackType, coroutine
from typing import Any, Final, Generic, Self, TypeVar, TypeVarTuple
from weakref import WeakSet

import anyio
import anyio.to_thread
from anyio.abc import TaskGroup

from mcp_context_proxy.errors import StoreError

logger = logging.getLogger(__name__)

T = TypeVar("T")
K = TypeVar("K")
V = TypeVar("V")
Args = TypeVarTuple("Args")

RETRY_SECONDS = 0.1
"""Wait before another attempt to start a thread."""

WARN_AGAIN_SECONDS = 600.0
"""Time between two warnings that threads are short."""

_warned_at = -WARN_AGAIN_SECONDS


def look_up_apart() -> None:
    """Have each name of a host looked up in a thread of its own, for which the program does not wait to end.

    asyncio has half a dozen threads for it. The owner of a name decides how long its lookup takes: a few of
    one server would keep all others from being connected to, and the program from ending.
    """

    class Apart(ThreadPoolExecutor):
        """One thread for each call."""

        def submit(self, call: Callable[..., T], /, *args: Any, **options: Any) -> Future[T]:
            answer = Future[T]()

            def work() -> None:
                try:
                    result = call(*args, **options)
                except Exception as error:
                    # boundary: whatever the call raises is for its caller
                    if answer.set_running_or_notify_cancel():
                        answer.set_exception(error)
                else:
                    if answer.set_running_or_notify_cancel():
                        answer.set_result(result)

            threading.Thread(target=work, daemon=True, name="lookup").start()
            return answer

        def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
            """Wait for nothing."""

    asyncio.get_running_loop().set_default_executor(Apart())


async def in_thread(function: Callable[[*Args], T], *arguments: *Args, abandon_on_cancel: bool = False) -> T:
    """Call a function in a thread and return its result; see `anyio.to_thread.run_sync`."""
    begun = False

    def call() -> T:
        nonlocal begun
        begun = True
        return function(*arguments)

    while True:
        try:
            return await anyio.to_thread.run_sync(call, abandon_on_cancel=abandon_on_cancel)
        except RuntimeError as error:
            if begun or "start new thread" not in str(error):
                raise
        await _wait()


async def in_thread_if(large: bool, function: Callable[[*Args], T], *arguments: *Args) -> T:
    """Call a function in a thread if it has to do with something large, and else at once."""
    return await in_thread(function, *arguments) if large else function(*arguments)


@contextlib.asynccontextmanager
async def alongside(*parts: Callable[[], Coroutine[Any, Any, object]]) -> AsyncIterator[None]:
    """Run parts beside the work in a block, and cancel them at its end."""
    async with anyio.create_task_group() as group:
        for part in parts:
            group.start_soon(part)
        yield
        group.cancel_scope.cancel()


class Repeating:
    """Calls a function in the next step of the loop, and then each so many seconds, until the block ends.

    A timer does it: a task that is cancelled leaves all its frames to the garbage collector.
    """

    def __init__(self, seconds: float, function: Callable[[], object]) -> None:
        self._seconds, self._function = seconds, function

    def __enter__(self) -> None:
        self._timer: asyncio.Handle = asyncio.get_running_loop().call_soon(self._call)

    def __exit__(self, *_: object) -> None:
        self._timer.cancel()

    def _call(self) -> None:
        self._timer = asyncio.get_running_loop().call_later(self._seconds, self._call)
        self._function()


async def _wait() -> None:
    global _warned_at  # noqa: PLW0603 - one process, one limit
    if time.monotonic() - _warned_at >= WARN_AGAIN_SECONDS:
        _warned_at = time.monotonic()
        logger.warning(
            "the system allows no more threads, so some work has to wait; raise the limit on processes "
            "(ulimit -u, or the limit of the container)"
        )
    await anyio.sleep(RETRY_SECONDS)


_lock = threading.Lock()


async def load(name: str) -> None:
    """Import a module that takes long, such as one with the MCP SDK, so that importing it anew takes nothing.

    The packages of the SDK import each other in a circle, so an import in two threads at once would fail.
    """

    def imported() -> None:
        with _lock:
            importlib.import_module(name)

    await in_thread(imported)


_running: Flight | None = None
"""The flight whose coroutine runs in this step of the event loop; None in a task."""


class assigned(Generic[T]):  # noqa: N801 - a context manager, which a generator would make slower
    """Gives a context variable a value for everything inside."""

    __slots__ = ("_before", "_value", "_variable")

    def __init__(self, variable: ContextVar[T], value: T) -> None:
        self._variable, self._value = variable, value

    def __enter__(self) -> None:
        self._before = self._variable.get()
        if self._before is not self._value:
            self._variable.set(self._value)

    def __exit__(self, *ended: object) -> None:
        # Not by a token, which only the context of its own task takes: a flight may go on in another.
        if self._before is not self._value:
            self._variable.set(self._before)


class Flight:
    """One request that is being answered."""

    # Of the class, because one is made for every call.
    reply: Reply[Any] | None = None
    """The reply that it waits for without a task."""
    _coroutine: Coroutine[Any, Any, None] | None = None
    _scope: anyio.CancelScope | None = None
    _cancelled = False
    """True while it has to be cancelled at its next wait."""

    def __init__(self, group: TaskGroup, context: Context | None = None) -> None:
        """Prepare a flight; if it needs a task, that is one of `group`.

        It runs in a copy of `context`, or of that in which it is started.
        """
        self._group = group
        self._context = copy_context() if context is None else context.copy()
        self.scopes: list[Cancellable] = []
        """Those that are entered, which are scopes of the task if the flight goes on in one."""

    @staticmethod
    def current() -> Flight | None:
        """Return the flight that runs now without a task; None in a task."""
        return _running

    @property
    def has_task(self) -> bool:
        """True once it goes on in a task, which may not have begun."""
        return self._scope is not None

    def start(self, coroutine: Coroutine[Any, Any, None]) -> None:
        """Run a coroutine up to its first wait. An error that it raises is raised in the group."""
        self._coroutine = coroutine
        self.resume()

    def cancel(self) -> None:
        if self._scope is not None:
            self._scope.cancel()
        elif self._coroutine is not None and self.reply is not None:
            self.resume(asyncio.CancelledError())
        elif self._coroutine is not None:
            self._cancelled = True

    def resume(self, raised: BaseException | None = None) -> None:
        """Go on up to the next wait: the reply that was waited for has come, or an error is raised there."""
        global _running  # noqa: PLW0603 - as the event loop has its current task
        coroutine = self._coroutine
        if coroutine is None:
            return
        self.reply = None
        before, _running = _running, self
        try:
            if raised is None:
                awaited = self._context.run(coroutine.send, None)
            else:
                awaited = self._context.run(coroutine.throw, raised)
        except (StopIteration, asyncio.CancelledError):
            self._coroutine = None
            return
        except Exception as error:  # boundary: it ends the group, as that of a task would
            self._coroutine = None
            self._group.start_soon(_raise, error)
            return
        finally:
            _running = before
        if self.reply is None:
            self._scope = anyio.CancelScope()
            self._context.run(self._group.start_soon, self._in_task, awaited)
        if self._cancelled:
            self._cancelled = False
            self.cancel()

    async def _in_task(self, awaited: Any) -> None:
        assert self._scope is not None
        assert self._coroutine is not None
        with self._scope:
            for scope in self.scopes:
                scope.open()
            await _rest(self._coroutine, awaited)


class Cancellable:
    """Scope whose content can be cancelled, in a task and in a flight."""

    # Of the class, because one is made for every call.
    _flight: Flight | None = None
    _scope: anyio.CancelScope | None = None
    """In a task. A flight without one is cancelled itself."""
    cancelled = False
    """True once it is cancelled."""
    caught = False
    """True if its content was ended by that."""

    def __enter__(self) -> Self:
        self._flight = _running
        if self._flight is None:
            self.open()
        else:
            self._flight.scopes.append(self)
        return self

    def open(self) -> None:
        self._scope = anyio.CancelScope()
        self._scope.__enter__()
        if self.cancelled:
            self._scope.cancel()

    def cancel(self) -> None:
        """Cancel the content, wherever it waits."""
        self.cancelled = True
        if self._scope is not None:
            self._scope.cancel()
        elif self._flight is not None and not self._flight.has_task:
            self._flight.cancel()

    def end_at(self, deadline: float) -> None:
        """Cancel the content at a time of the event loop; call it in a task."""
        assert self._scope is not None
        self._scope.deadline = deadline

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool:
        if self._scope is not None:
            self.caught = bool(self._scope.__exit__(kind, error, trace))
        else:
            self.caught = self.cancelled and isinstance(error, asyncio.CancelledError)
        if self._flight is not None:
            self._flight.scopes.pop()
        return self.caught


async def _raise(error: Exception) -> None:
    raise error


@coroutine
def _rest(begun: Coroutine[Any, Any, None], awaited: Any) -> Generator[Any, Any, None]:
    """Run the rest of a coroutine that already awaits something."""
    try:
        while True:
            try:
                sent = yield awaited
            except BaseException as error:  # boundary: whatever is thrown is for the coroutine
                awaited = begun.throw(error)
            else:
                awaited = begun.send(sent)
    except StopIteration:
        return


@coroutine
def in_task() -> Generator[None, None, None]:
    """Go on in a task, in which scopes can be opened; do nothing where this is one."""
    if _running is not None:
        yield


class Reply(Generic[T]):
    """A result that one request waits for, in a flight or in a task."""

    # Of the class, because one is made for every call.
    done = False
    """True once there is a value or an error."""
    _value: T | None = None
    _error: BaseException | None = None
    _flight: Flight | None = None
    _future: asyncio.Future[None] | None = None

    def answer(self, value: T) -> None:
        """Hand the value to the request that waits."""
        self._value = value
        self._resume()

    def fail(self, error: BaseException) -> None:
        self._error = error
        self._resume()

    def _resume(self) -> None:
        self.done = True
        if self._flight is not None:
            self._flight.resume()
        elif self._future is not None and not self._future.done():
            self._future.set_result(None)

    def __await__(self) -> Generator[Any, None, T]:
        """Wait for the value, and hold no reference to it afterwards."""
        if not self.done:
            if _running is not None:
                self._flight, _running.reply = _running, self
                try:
                    yield self
                finally:
                    self._flight = None
            else:
                self._future = asyncio.get_running_loop().create_future()
                yield from self._future
        if self._error is not None:
            try:
                raise self._error
            finally:
                self._error = None
        value, self._value = self._value, None
        return value  # type: ignore[return-value]


_pools = WeakSet["Threads"]()


class Threads(ThreadPoolExecutor):
    """A few threads; a forked process, which has none of them, begins with new ones."""

    def __init__(self, most: int, name: str) -> None:
        super().__init__(most, name)
        self.asked = most, name
        _pools.add(self)


if hasattr(os, "register_at_fork"):  # not on Windows
    os.register_at_fork(
        after_in_child=lambda: [ThreadPoolExecutor.__init__(one, *one.asked) for one in _pools]
    )


class Workers:
    """A few threads for one kind of work, which keep none from all other work.

    A caller needs no task to wait for them, and goes on in the step of the event loop that gets the result.
    """

    def __init__(self, most: int) -> None:
        self._pool = Threads(most, "worker")

    async def run(self, function: Callable[[], T]) -> T:
        """Return the result of a function. If the caller is cancelled, the function goes on for nobody."""
        reply, loop, context = Reply[T](), asyncio.get_running_loop(), copy_context()
        turn = threading.Lock()

        def hand_over(take: Callable[[Any], None], result: object) -> None:
            with contextlib.suppress(RuntimeError):  # the loop has ended
                loop.call_soon_threadsafe(take, result)

        def work() -> None:
            if not turn.acquire(blocking=False):
                return  # another thread has taken it
            try:
                result = context.run(function)
            except BaseException as error:  # boundary: whatever is raised is for the caller
                hand_over(reply.fail, error)
            else:
                hand_over(reply.answer, result)

        try:
            waiting = self._pool.submit(work)
        except RuntimeError as error:
            if "start new thread" not in str(error):
                raise
            # One of these threads takes it once it is free, if there is any, or one for other work does.
            await in_task()
            await in_thread(work, abandon_on_cancel=True)
            return await reply
        try:
            return await reply
        finally:
            waiting.cancel()


LAST_SECONDS: Final = 2.0
"""Time for the entries that are unwritten when the proxy stops."""


def keep_latest(kept: dict[K, V], key: K, value: V, most: int) -> V:
    """Store a value as the latest one, and return it; of more than `most`, the oldest is dropped.

    Threads that share the values take a lock around it.
    """
    kept.pop(key, None)
    kept[key] = value
    if len(kept) > most:
        del kept[next(iter(kept))]
    return value


class BatchWriter(Generic[T]):
    """Gathers entries for a moment and writes them together, in a thread.

    Entries that the store refuses are kept, and written with the next ones. A killed process loses the
    entries since the last write began: those of `seconds` and of the time that a write takes.
    """

    def __init__(
        self, write: Callable[[list[T]], None], *, seconds: float, limit: int, at_once: int | None = None
    ) -> None:
        """Write nothing yet: `run` does.

        `write` is called in a thread, one call at a time, with `at_once` entries at most, gathered for some
        `seconds`. It raises `StoreError` where they are to be kept for another attempt. Of more than `limit`
        entries that wait, the oldest are dropped.
        """
        self._write, self._seconds, self._at_once = write, seconds, at_once
        self._waiting: deque[T] = deque(maxlen=limit)
        self._in_flight: list[T] = []
        self._wake, self._writing = anyio.Event(), anyio.Lock()

    def add(self, entry: T) -> None:
        self._waiting.append(entry)
        self._wake.set()

    @property
    def unwritten(self) -> list[T]:
        return [*self._in_flight, *self._waiting]

    async def run(self) -> None:
        """Write until cancelled, and then the entries that are left."""
        try:
            while True:
                await self._wake.wait()
                await anyio.sleep(self._seconds)
                self._wake = anyio.Event()
                await self.flush()
        finally:
            with anyio.move_on_after(LAST_SECONDS, shield=True):
                await self.flush()

    async def flush(self) -> None:
        """Write every entry that was added before, unless the store refuses."""
        async with self._writing:
            left = len(self._waiting)
            while left > 0:
                count = min(left, self._at_once or left)
                self._in_flight = [self._waiting.popleft() for _ in range(count)]
                # Not abandoned when cancelled: the store must not get the same entries twice.
                with anyio.CancelScope(shield=True):
                    written = await in_thread(self._attempt, self._in_flight)
                if not written:
                    self._waiting = deque(self.unwritten, self._waiting.maxlen)
                self._in_flight, left = [], left - count if written else 0

    def _attempt(self, entries: list[T]) -> bool:
        try:
            self._write(entries)
        except StoreError:
            return False  # logged by the store
        except Exception:
            # boundary: entries that cannot be written must not end the task, nor be tried for ever
            logger.exception("%d entries could not be written to the store and are lost", len(entries))
        return True
