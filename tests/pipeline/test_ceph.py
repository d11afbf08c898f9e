"""Features of a real S3 server that moto may lack: versions and long listings."""

import http.client
from concurrent.futures import ThreadPoolExecutor

import pytest

pytest.importorskip("s3fs")

from ceph_server import installed

KEYS, WRITERS = 100_000, 8

pytestmark = [
    pytest.mark.skipif(not installed(), reason="Ceph is not installed"),
    pytest.mark.parametrize("s3_server", ["ceph"], indirect=True),
]


def test_the_newest_version_of_an_object_is_read(s3):
    import s3fs

    client = s3fs.S3FileSystem(endpoint_url=s3.url)
    bucket = s3.base.removeprefix("s3://")
    client.call_s3(
        "put_bucket_versioning",
        Bucket=bucket,
        VersioningConfiguration={"Status": "Enabled"},
    )
    refs = [s3.store.put(f"{s3.base}/one", f"version {n}".encode()) for n in range(3)]
    assert s3.store.get(refs[-1]) == b"version 2"
    versions = client.call_s3("list_object_versions", Bucket=bucket)["Versions"]
    assert len(versions) == 3
    assert [ref.size for ref in s3.store.list(f"{s3.base}/")] == [9]
    client.rm_file(f"{bucket}/one")
    assert s3.store.size(f"{s3.base}/one") is None
    assert s3.store.create(f"{s3.base}/one", b"again")
    assert s3.store.get(f"{s3.base}/one") == b"again"


@pytest.mark.timeout(1800)
def test_a_hundred_thousand_keys_are_listed_in_order(s3):
    import s3fs

    bucket = s3.base.removeprefix("s3://")
    s3fs.S3FileSystem(endpoint_url=s3.url).call_s3(
        "put_bucket_acl", Bucket=bucket, ACL="public-read-write"
    )  # so that keys can be made without signatures, which take longer than all else

    def put(first):
        connection = http.client.HTTPConnection("127.0.0.1", s3.target)
        for number in range(first, KEYS, WRITERS):
            connection.request("PUT", f"/{bucket}/keys/{number:06d}", b"%d" % number)
            answer = connection.getresponse()
            answer.read()
            assert answer.status == 200
        connection.close()

    with ThreadPoolExecutor(WRITERS) as pool:
        list(pool.map(put, range(WRITERS)))
    s3.log.clear()
    listed = s3.store.list(f"{s3.base}/keys/")
    assert len(listed) == KEYS
    assert [ref.path[-6:] for ref in listed] == [f"{number:06d}" for number in range(KEYS)]
    assert [ref.size for ref in listed[::9999]] == [len(str(n)) for n in range(0, KEYS, 9999)]
    assert s3.calls("GET") == -(-KEYS // 1000)
