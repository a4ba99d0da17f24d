import pytest

pytest.register_assert_rewrite("tests.contracts.mailbox", "tests.contracts.posts")
