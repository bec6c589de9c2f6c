"""All consumer instances whose groups this broker coordinates: made, found, timed out, resumed after a restart.

Invariant: there is one ConsumerInstance for each instance that a loaded shard has a record of.
"""

import asyncio
from typing import Final

import structlog

from consumer_offsets.group_shards import GroupShard, GroupShards, answered, check_group_name
from consumer_offsets.groups.instance_record import InstanceConfig, InstanceValue
from consumer_offsets.groups.instance_table import PutInstance, unknown_instance
from consumer_offsets.instances.consumer_instance import ConsumerInstance
from consumer_offsets.instances.instance_home import InstanceHome
from logstore.broker.authorizer import Operation, ResourceType
from logstore.broker.context import RequestContext
from logstore.entropy import new_uuid
from logstore.errors import InvalidInstanceConfigError, LogStoreError, ThrottledError, UnknownInstanceError
from logstore.limits import INSTANCE_NAME_LENGTH_MAX
from logstore.names import is_legal_name
from logstore.observability import THROTTLED
from logstore.records.offset_record import InstanceKey

log = structlog.stdlib.get_logger(__name__)

_TIMEOUT_MS: Final = 30_000
_LOOK_S: Final = 1.0
_NOTIFY_S: Final = 0.005


class ConsumerInstances:
    """The consumer instances of this broker. They are started before the shards load."""

    def __init__(self, home: InstanceHome, shards: GroupShards) -> None:
        self._home = home
        self._shards = shards
        self._settings = home.broker.settings
        self._instances: dict[InstanceKey, ConsumerInstance] = {}
        #: The number of creations under way, which also count for the limit.
        self._creating = 0
        self._looking: asyncio.Task[None] | None = None
        self._topics_changed = False
        self._notifying: asyncio.Task[None] | None = None
        #: The instances that are being removed after their time-out.
        self._removing: dict[ConsumerInstance, asyncio.Task[None]] = {}

    def start(self) -> None:
        self._shards.listeners.append(self._on_shard)
        self._looking = asyncio.get_running_loop().create_task(self._look())

    async def close(self) -> None:
        """Stop without leaving the groups: after a restart the instances continue."""
        self._shards.listeners.remove(self._on_shard)
        ending = [task for task in (self._looking, self._notifying, *self._removing.values()) if task is not None]
        for task in ending:
            task.cancel()
        await asyncio.gather(*ending, return_exceptions=True)
        for instance in self._instances.values():
            instance.close()
        self._instances.clear()

    def topics_changed(self) -> None:
        """Make all instances look at topics that were made, were deleted or have grown."""
        self._topics_changed = True
        if self._notifying is None or self._notifying.done():
            self._notifying = asyncio.get_running_loop().create_task(self._notify_instances())

    async def _notify_instances(self) -> None:
        """Let each instance look at what its pattern matches now. The event loop does other work in between."""
        clock = self._home.clock
        while self._topics_changed:
            self._topics_changed = False
            end = clock.monotonic() + _NOTIFY_S
            for instance in list(self._instances.values()):
                instance.topics_changed()
                if clock.monotonic() > end:
                    await asyncio.sleep(0)
                    end = clock.monotonic() + _NOTIFY_S

    async def create(self, context: RequestContext, group: str, name: str | None, config: InstanceConfig) -> str:
        """Create an instance, and return its name: ``name``, or a new one for None.

        Raises GroupAuthorizationError, InvalidGroupError, InvalidInstanceConfigError (the name), InstanceExistsError,
        ThrottledError (``max.consumer.instances``), and what ``GroupCoordinator.commit`` raises.
        """
        self._home.broker.authorizer.require(context, Operation.READ, ResourceType.GROUP, group)
        check_group_name(group)
        if name is None:
            name = f"rest-consumer-{new_uuid()}"
        elif not is_legal_name(name, INSTANCE_NAME_LENGTH_MAX):
            raise InvalidInstanceConfigError(
                f"Invalid consumer configuration: name {name[:64]!r} is not allowed, use 1 to "
                f"{INSTANCE_NAME_LENGTH_MAX} of A-Z a-z 0-9 . _ - (but not '.' or '..'), or leave it out."
            )
        key = InstanceKey(group, name)
        if len(self._instances) + self._creating >= self._settings.max_consumer_instances:
            THROTTLED.labels("consumer_instances").inc()
            raise ThrottledError(
                f"All {self._settings.max_consumer_instances} consumer instances are taken (max.consumer.instances): "
                "delete those that are not used, try later, or raise it."
            )
        self._creating += 1
        try:
            shard = await self._shards.wait_for_shard(group, _TIMEOUT_MS)
            value = InstanceValue(str(new_uuid()), config)
            answer = shard.request(lambda token: PutInstance(token, key, None, value))
            await answered(group, answer, _TIMEOUT_MS)
            self._add(shard, key, value)
        finally:
            self._creating -= 1
        return name

    def get(self, context: RequestContext, group: str, name: str) -> ConsumerInstance:
        """Return the instance. Raises GroupAuthorizationError, UnknownInstanceError, and what ``GroupShards.machine``
        raises.
        """
        self._home.broker.authorizer.require(context, Operation.READ, ResourceType.GROUP, group)
        key = InstanceKey(group, name)
        instance = self._instances.get(key)
        if instance is None:
            shard = self._shards.find_shard(group)
            if shard is None:
                raise unknown_instance(key)
            shard.require_active()
            # The instance may have been created although the response did not come in time.
            value = shard.machine.instances.get(key)
            if value is None:
                raise unknown_instance(key)
            instance = self._add(shard, key, value)
        instance.require_there()
        return instance

    async def delete(self, context: RequestContext, group: str, name: str) -> None:
        """Delete the instance: its polls end, and it leaves its group. Raises what ``get`` raises."""
        instance = self.get(context, group, name)
        await instance.delete(reason="The consumer instance was deleted.", commits=True)
        self._remove(instance)

    def _add(self, shard: GroupShard, key: InstanceKey, value: InstanceValue) -> ConsumerInstance:
        before = self._instances.get(key)
        if before is not None and before.id == value.id and before.shard is shard:
            return before
        if before is not None:
            before.close()
        instance = self._instances[key] = ConsumerInstance(self._home, shard, key, value.id)
        instance.start()
        return instance

    def _remove(self, instance: ConsumerInstance) -> None:
        if self._instances.get(instance.key) is instance:
            del self._instances[instance.key]

    def _on_shard(self, shard: GroupShard) -> None:
        """Follow a shard that has loaded its machine, perhaps again, or that another broker leads now."""
        table = shard.machine.instances if shard.is_active else None
        for key, instance in list(self._instances.items()):
            if instance.shard is shard and (table is None or table.get(key) is None):
                instance.close()
                self._remove(instance)
        for key in table or ():
            value = table.get(key) if table is not None else None
            if value is not None:
                self._add(shard, key, value)

    async def _look(self) -> None:
        """Remove unused instances, each in its own task: it may have to wait long for its group."""
        timeout_s = self._settings.consumer_instance_timeout_ms / 1000
        while True:
            await asyncio.sleep(min(_LOOK_S, timeout_s / 4))
            for instance in self._instances.values():
                if instance.is_unused(timeout_s) and instance not in self._removing:
                    removing = asyncio.get_running_loop().create_task(self._time_out(instance, timeout_s))
                    self._removing[instance] = removing

    async def _time_out(self, instance: ConsumerInstance, timeout_s: float) -> None:
        try:
            if not await instance.delete_unused(timeout_s):
                return
            log.info("instance.timed_out", group=instance.key.group, instance=instance.key.instance)
        except UnknownInstanceError:
            # The response to its deletion did not come in time.
            instance.close()
        except LogStoreError:
            return  # The next look tries again.
        finally:
            del self._removing[instance]
        self._remove(instance)
