import pytest

pytest.register_assert_rewrite("gateway.testing", "gateway.testing_posts")
