import pytest
@pytest.mark.django_db
def test_x():
    from django.db import connection
    with connection.cursor() as c:
        c.execute("select current_database()")
        print(c.fetchone())
def test_y(redis_url):
    import redis
    assert redis.Redis.from_url(redis_url).ping()
