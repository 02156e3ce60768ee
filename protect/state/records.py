"""Translates zones and workloads to JSON objects of the store, and back.

A zone's specification is written among the zone's own keys.  A missing key has its default.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import astuple, fields
from typing import Any, TypeVar

from cattrs import Converter
from cattrs.gen import make_dict_structure_fn, make_dict_unstructure_fn, override

from daemonkit.convert import expect, strict_converter, structure, wrong
from daemonkit.faults import Broken
from protect.model.capacity.reservation import Reservation
from protect.model.domain.shares import CpuShares, DiskRates
from protect.model.process import Streams
from protect.model.toolstack import DomainKernel
from protect.model.workload import Reason, Workload, WorkloadDisk
from protect.model.zone import Zone, ZoneIdMapping, ZoneSpec

Json = dict[str, Any]
T = TypeVar("T")


def of_zone(zone: Zone) -> Json:
    body: Json = _converter.unstructure(zone)
    return {**body.pop("spec"), **body}


def zone(body: Json) -> Zone:
    """Read a zone.  Broken: the record is no zone."""
    return _read("zone", Zone, {**body, "spec": _read("zone", ZoneSpec, body)})


def of_workload(workload: Workload) -> Json:
    body: Json = _converter.unstructure(workload)
    return body


def workload(body: Json) -> Workload:
    """Read a workload.  Broken: the record is not a workload's."""
    return _read("workload", Workload, body)


def of_reservation(reservation: Reservation) -> Json:
    body: Json = _converter.unstructure(reservation)
    return body


def reservation(body: Json) -> Reservation:
    """Read a reservation.  Broken: the record is no reservation."""
    return _read("reservation", Reservation, body)


def _read(kind: str, cls: type[T], body: Json) -> T:
    try:
        return structure(_converter, cls, body)
    except ValueError as error:
        raise Broken("read state", f"{kind} {body.get('id')}", str(error)) from error


def _json_converter() -> Converter:
    converter = strict_converter(unknown_keys=True)
    made = override(struct_hook=lambda spec, _: spec)
    converter.register_structure_hook(Zone, make_dict_structure_fn(Zone, converter, spec=made))
    _as_array(converter, Streams, lambda streams: [streams.stdin, streams.stdout, streams.stderr])
    _as_array(converter, ZoneIdMapping, lambda mapping: [mapping.host_id, mapping.length])
    _as_array(converter, CpuShares, lambda shares: [shares.weight, shares.cap])
    _as_array(converter, DiskRates, lambda rates: list(astuple(rates)))
    kernel = make_dict_unstructure_fn(DomainKernel, converter, _cattrs_omit_if_default=True)
    converter.register_unstructure_hook(DomainKernel, kernel)
    _optional(converter, ZoneIdMapping, absent=[])
    _optional(converter, Reason, absent="")
    _optional(converter, DomainKernel, absent=None)
    converter.register_unstructure_hook(WorkloadDisk, lambda disk: [disk.vdev, *disk.file])
    converter.register_structure_hook(WorkloadDisk, lambda value, _: _disk(converter, value))
    rare = override(omit_if_default=True)
    converter.register_unstructure_hook(
        ZoneSpec,
        make_dict_unstructure_fn(
            ZoneSpec,
            converter,
            seclabel=rare,
            shares=rare,
            memory_max_bytes=rare,
            vcpus_max=rare,
            hotplug_max_bytes=rare,
            memory_policy=rare,
            memory_min_bytes=rare,
            memory_limit_bytes=rare,
            cpupool=rare,
            device_names=rare,
            reservations=rare,
            disk_rates=rare,
            scratch_bytes=rare,
        ),
    )
    converter.register_unstructure_hook(
        Zone,
        make_dict_unstructure_fn(
            Zone,
            converter,
            file_volumes=rare,
            anonymous_volumes=rare,
            resizes=rare,
            death_kind=rare,
            console=rare,
            devices=rare,
            host_boot=rare,
        ),
    )
    converter.register_unstructure_hook(
        Reservation, make_dict_unstructure_fn(Reservation, converter, origin=rare, devices=rare, claim=rare)
    )
    converter.register_unstructure_hook(
        Workload, make_dict_unstructure_fn(Workload, converter, start_error=rare, command=rare, files=rare)
    )
    return converter


def _as_array(converter: Converter, cls: type[T], values: Callable[[T], list[int]]) -> None:
    """Write a dataclass as an array of the fields' values, in order."""
    names = [field.name for field in fields(cls)]  # type: ignore[arg-type]  # no type for "a dataclass type"
    from_table = converter.get_structure_hook(cls)

    def read(value: object, _: object) -> T:
        made: T = from_table(dict(zip(names, _array(value, len(names)), strict=True)), cls)
        return made

    converter.register_structure_hook(cls, read)
    converter.register_unstructure_hook(cls, values)


def _optional(converter: Converter, cls: type[T], absent: object) -> None:
    """Write None as ``absent``, and read any empty value as None."""
    read, write = converter.get_structure_hook(cls), converter.get_unstructure_hook(cls)
    converter.register_structure_hook(cls | None, lambda value, _: read(value, cls) if value else None)
    converter.register_unstructure_hook(cls | None, lambda value: absent if value is None else write(value))


def _disk(converter: Converter, value: object) -> WorkloadDisk:
    vdev, device, inode = _array(value, 3)
    return WorkloadDisk(expect(str, vdev), (expect(int, device), expect(int, inode)))


def _array(value: object, size: int) -> list[object]:
    items: list[object] = expect(list, value)
    if len(items) != size:
        raise wrong(f"want {size} items, got {len(items)}")
    return items


_converter = _json_converter()
