"""Answers of a NameNode, read within bounds: it may be any HDFS, or something else that took its address.

Owns how much of an answer is read, and for how long. What a file holds is streamed: its reader bounds that.
"""

import time
from typing import Any, Final

import requests
from requests.adapters import HTTPAdapter
from urllib3.exceptions import HTTPError

ANSWER_MAX_BYTES: Final = 256 << 20
"""A listing has about 300 bytes for each file."""
ANSWER_MAX_S: Final = 120.0
_PIECE_BYTES: Final = 64 << 10


class AnswerError(requests.RequestException):
    """An answer beyond the bounds."""


class BoundedAnswers(HTTPAdapter):
    """Reads whole answers, unless they are to be streamed."""

    def send(
        self, request: requests.PreparedRequest, stream: bool = False, *args: Any, **kwargs: Any
    ) -> requests.Response:
        """Raises `requests.RequestException`."""
        deadline_s = time.monotonic() + ANSWER_MAX_S
        response = super().send(request, True, *args, **kwargs)
        if not stream or response.is_redirect or not response.ok:
            content = _whole(response, deadline_s)
            response._content = content
            response._content_consumed = True  # type: ignore[attr-defined]
        return response


def _whole(response: requests.Response, deadline_s: float) -> bytes:
    """Returns the whole body. Raises `AnswerError` and what urllib3 raises, as requests does."""
    found = bytearray()
    try:
        while piece := response.raw.read1(_PIECE_BYTES, decode_content=True):
            found += piece
            if len(found) > ANSWER_MAX_BYTES:
                raise AnswerError(
                    f"its answer has more than {ANSWER_MAX_BYTES} bytes", request=response.request
                )
            if time.monotonic() > deadline_s:
                raise AnswerError(
                    f"its answer took longer than {ANSWER_MAX_S:.0f} s", request=response.request
                )
    except AnswerError:
        raise
    except (HTTPError, OSError) as error:
        raise requests.ConnectionError(error, request=response.request) from error
    finally:
        response.close()
    return bytes(found)
