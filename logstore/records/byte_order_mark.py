"""The byte order mark of UTF-8. Editors and PowerShell put it in front of a text. It is dropped at the start of a text
body, in every format (RFC 8259, section 8.1, allows it for JSON).
"""

from typing import Final

BYTE_ORDER_MARK: Final = b"\xef\xbb\xbf"


def without_byte_order_mark(text: bytes) -> bytes:
    return text.removeprefix(BYTE_ORDER_MARK)
