import inspect
import re

from logstore.client.admin import Admin
from tests.support.server_process import ROOT


def test_the_pages_optional_parameters_of_the_admin_are_right():
    page = (ROOT / "docs" / "python-client.md").read_text()
    documented = re.findall(r"^\| `(\w+)\((.*=.*)\)` \|", page, re.MULTILINE)
    checked = [(name, text) for name, text in documented if hasattr(Admin, name)]
    assert len(checked) >= 3
    for name, text in checked:
        after_the_star = text.partition("*, ")[2]
        parameters = inspect.signature(getattr(Admin, name)).parameters
        for optional in re.findall(r"(\w+)=", text):
            is_keyword = parameters[optional].kind is inspect.Parameter.KEYWORD_ONLY
            assert is_keyword == (f"{optional}=" in after_the_star), f"{name}({text})"
