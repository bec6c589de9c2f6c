"""Consumer groups as a pure, synchronous state machine: events in, effects out; no clock, socket or asyncio inside."""
