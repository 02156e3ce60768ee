"""All sandboxes and containers: reads are answered from memory, changes stored before they take effect."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Hashable, Mapping, Sequence
from typing import Any, Generic, Protocol, TypeVar

from daemonkit.faults import Broken, Fault, Invalid, Missing
from daemonkit.logs import fields
from daemonkit.tasks import complete

log = logging.getLogger(__name__)

P = TypeVar("P", bound=Hashable)


class Record(Protocol):
    """A record; frozen."""

    @property
    def id(self) -> str: ...
    @property
    def phase(self) -> Any: ...
    @property
    def hidden(self) -> bool: ...


R = TypeVar("R", bound=Record)


class Records(Generic[R]):
    """Records by id."""

    def __init__(
        self,
        kind: str,
        following: Mapping[Any, frozenset[Any]],
        save: Callable[[R], Awaitable[None]],
        delete: Callable[[str], Awaitable[None]],
    ) -> None:
        self._kind = kind
        self._next = following
        self._save = save
        self._delete = delete
        self._records: dict[str, R] = {}
        self.version = 0
        """Grows with each change."""
        self._observers: list[Callable[[R | None, R | None], None]] = []
        self._preparers: list[Callable[[R | None, R | None], Callable[[], None]]] = []

    def prepare(self, preparer: Callable[[R | None, R | None], Callable[[], None]]) -> None:
        """Call ``preparer`` at each change, with the record before and after, None for none.

        The result is called once the change is stored, and never if the change is taken back.  Between both,
        other records may change.
        """
        self._preparers.append(preparer)

    def observe(self, observer: Callable[[R | None, R | None], None]) -> None:
        """Call ``observer`` after each stored change with the record before and after, None for none."""
        self._observers.append(observer)

    def adopt(self, record: R) -> None:
        """Add a record from the store."""
        self._keep(record)

    async def add(self, record: R) -> None:
        """Add a new record."""
        self._keep(record)
        await complete(self._store(None, record, self._prepared(None, record)))

    async def put(self, record: R) -> R:
        """Replace a record; its phase may stay, or change as the table allows.

        Memory changes at once, and the store in the order of the calls.  If the store fails, memory goes back
        to the old record, unless a later change has replaced the new one.
        """
        before = self._replace(record)
        await complete(self._store(before, record, self._prepared(before, record)))
        return record

    async def note(self, record: R) -> None:
        """Like ``put``, for facts: memory keeps them if the store fails.  A restart learns them again."""
        before = self._replace(record)
        await complete(self._store(before, record, self._prepared(before, record), keep=True))

    def _replace(self, record: R) -> R:
        before = self.get(record.id)
        self.check(record)
        self._keep(record)
        return before

    async def _store(
        self, before: R | None, record: R, prepared: Sequence[Callable[[], None]], *, keep: bool = False
    ) -> None:
        """Save and publish; never cancelled, to keep memory and the store equal."""
        try:
            await self._save(record)
        except Exception as error:
            if keep and isinstance(error, Fault):
                log.error("not stored: %s", error, extra=fields(kind=self._kind, id=record.id))
            else:
                if before is not None and self._records.get(record.id) is record:
                    self._keep(before)
                raise
        self._tell(before, record, prepared)

    def check(self, record: R) -> None:
        """Broken: ``record`` may not follow the present record."""
        now = self.get(record.id).phase
        if record.phase is not now and record.phase not in self._next[now]:
            raise Broken(
                f"change {self._kind}", record.id, f"{now.value} does not become {record.phase.value}"
            )

    async def drop(self, record_id: str) -> None:
        """Forget a record; unknown ids succeed."""
        await complete(self._drop(record_id))

    async def _drop(self, record_id: str) -> None:
        await self._delete(record_id)
        before = self._records.pop(record_id, None)
        self.version += 1
        self._tell(before, None, self._prepared(before, None))

    def _prepared(self, before: R | None, after: R | None) -> list[Callable[[], None]]:
        return [prepare(before, after) for prepare in self._preparers]

    def _tell(self, before: R | None, after: R | None, prepared: Sequence[Callable[[], None]]) -> None:
        for observer in self._observers:
            observer(before, after)
        for announce in prepared:
            announce()

    def _keep(self, record: R) -> None:
        self._records[record.id] = record
        self.version += 1

    def get(self, record_id: str) -> R:
        """The record of this whole id, hidden or not.  Missing: unknown id."""
        record = self._records.get(record_id)
        if record is None:
            raise Missing(f"find {self._kind}", record_id, "no such id")
        return record

    def has(self, record_id: str) -> bool:
        """Whether a record, hidden or not, has this whole id."""
        return record_id in self._records

    def phase(self, record_id: str) -> Any:
        """The phase of a record; None: unknown id."""
        record = self._records.get(record_id)
        return record.phase if record else None

    def find_or_none(self, wanted: str) -> R | None:
        """Like ``find``, but None if no record matches.  Invalid: empty or ambiguous."""
        try:
            return self.find(wanted)
        except Missing:
            return None

    def find(self, wanted: str) -> R:
        """The visible record of this id, or of this unambiguous prefix.

        Missing: no such record; Invalid: empty or ambiguous.
        """
        if not wanted:
            raise Invalid(f"find {self._kind}", "", "the id is empty")
        if (exact := self._records.get(wanted)) and not exact.hidden:
            return exact
        found = [record for record in self.visible() if record.id.startswith(wanted)]
        if len(found) > 1:
            raise Invalid(f"find {self._kind}", wanted[:64], f"{len(found)} ids begin with it")
        if not found:
            raise Missing(f"find {self._kind}", wanted[:64], "no such id")
        return found[0]

    def visible(self) -> list[R]:
        """The visible records, oldest first."""
        return [record for record in self._records.values() if not record.hidden]

    def all(self) -> list[R]:
        """All records, oldest first."""
        return list(self._records.values())


def has_labels(labels: Mapping[str, str], selector: Mapping[str, str]) -> bool:
    """Whether a list request's label selector selects the labels."""
    return all(labels.get(key) == value for key, value in selector.items())


def has_id(record_id: str, wanted: str) -> bool:
    """Whether the id of a list request selects the record.  Prefixes are allowed; "" selects all."""
    return record_id.startswith(wanted)
