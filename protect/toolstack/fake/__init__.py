"""The fake toolstack: zones as namespaces, for machines without Xen.  No security boundary."""

from protect.toolstack.fake.fake_settings import FakeSettings
from protect.toolstack.fake.faultplan import FaultKind, FaultPlan, InjectedFault
from protect.toolstack.fake.toolstack import FakeToolstack

__all__ = ["FakeSettings", "FakeToolstack", "FaultKind", "FaultPlan", "InjectedFault"]
