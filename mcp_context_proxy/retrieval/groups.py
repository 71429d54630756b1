"""Many small arrays put together into few large ones; a change makes only the one anew that it is in.

A search that touches one array per server is slow with thousands of servers; one array of everything is slow
to change.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate, chain
from typing import Generic, TypeVar

Member = TypeVar("Member")
Whole = TypeVar("Whole")
Element = TypeVar("Element")


@dataclass(frozen=True, slots=True, eq=False)
class Group(Generic[Member, Whole]):
    """Consecutive members as one."""

    members: tuple[Member, ...]
    size: int
    whole: Whole


class Flat(Generic[Element]):
    """The elements of several tuples as of one.

    They are not copied: to count the references of 100,000 objects, which lie all over memory, takes 10 ms,
    in which no other thread runs, and as much again when they are dropped.
    """

    __slots__ = ("_firsts", "_pieces")

    def __init__(self, pieces: Iterable[tuple[Element, ...]]) -> None:
        self._pieces = tuple(pieces)
        self._firsts = tuple(accumulate(map(len, self._pieces), initial=0))

    def __len__(self) -> int:
        return self._firsts[-1]

    def __getitem__(self, at: int) -> Element:
        piece = bisect_right(self._firsts, at) - 1
        return self._pieces[piece][at - self._firsts[piece]]

    def __iter__(self) -> Iterator[Element]:
        return chain.from_iterable(self._pieces)


def grouped(
    members: Sequence[tuple[Member, int]],
    enough: int,
    join: Callable[[Sequence[Member]], Whole],
    before: Iterable[Group[Member, Whole]] = (),
) -> list[Group[Member, Whole]]:
    """Divide members into groups of about ``enough``, in order.

    Args:
        members: Each with its size.
        enough: Size from which on a group takes no more members.
        join: Makes one of several.
        before: Groups of earlier; one whose members are the same objects is used again.
    """
    known = {id(group.members[0]): group for group in before}
    made: list[Group[Member, Whole]] = []
    pending: list[tuple[Member, int]] = []

    def flush() -> None:
        if pending:
            own = tuple(member for member, _ in pending)
            made.append(Group(own, sum(size for _, size in pending), join(own)))
            pending.clear()

    at = waiting = 0
    while at < len(members):
        group = known.get(id(members[at][0]))
        end = at + (len(group.members) if group else 1)
        if group is not None and not _same(group, members[at:end]):
            group, end = None, at + 1
        if group is not None and not (pending and group.size < enough):
            flush()
            made.append(group)
        else:
            pending += members[at:end]
        waiting = waiting + sum(size for _, size in members[at:end]) if pending else 0
        if waiting >= enough:
            flush()
            waiting = 0
        at = end
    flush()
    return made


def _same(group: Group[Member, Whole], members: Sequence[tuple[Member, int]]) -> bool:
    return len(group.members) == len(members) and all(
        ours is theirs for ours, (theirs, _) in zip(group.members, members, strict=True)
    )
