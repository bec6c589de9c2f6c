"""Kafka's wire protocol: messages, their codecs, the APIs that the store serves, frames. No socket, no broker.

``schemas`` has Kafka's own definitions of its messages. ``messages`` makes a class of each structure in them, and
``decoders`` and ``encoders`` make a function for each message and version when it is first used. ``requests`` and
``responses`` read and write whole frames, for both ends; ``frame_reader`` finds the frames in a stream of bytes.
``apis`` is the table of the APIs and versions that a listener advertises.

Record batches are bytes here: another package reads the records.
"""
