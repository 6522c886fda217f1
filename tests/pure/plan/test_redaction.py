"""Secrets in texts of others are replaced, and nothing else is."""

import pytest
from batchgrowth.errors import REDACTED, redacted
from hypothesis import given
from hypothesis import strategies as st

CANARY = "c4naryHunter2c4naryHunter2c4naryHunter2"
LEAKS = {
    "a password": "password=%s",
    "a password in JSON": '{"user": "me", "password": "%s"}',
    "an environment variable": "KeyError in {'AWS_SECRET_ACCESS_KEY': '%s'}",
    "a variable of a token": "HF_TOKEN=%s python train.py",
    "an address": "OperationalError: cannot connect to postgres://me:%s@db:5432/runs",
    "an address without a name": "redis://:%s@cache",
    "a header": "401 Unauthorized for Authorization: Bearer %s",
    "a header of a library": "{'authorization': 'Basic %s'}",
    "a signed address": "GET https://bucket/key?X-Amz-Signature=%s&x=1",
    "a web token": "invalid token eyJhbGciOiJSUzI1NiJ9.%s.c2lnbmF0dXJl",
    "an Amazon key": "InvalidAccessKeyId: AKIA0123456789ABCDEF %s"[:-3],
    "a token of GitHub": "fatal: ghp_%s",
    "a token of Hugging Face": "hf_%s is not valid",
    "a key": "-----BEGIN RSA PRIVATE KEY-----\n%s\n-----END RSA PRIVATE KEY-----",
    "the beginning of a key": "…-----BEGIN PRIVATE KEY-----\n%s",
    "the end of a key": "MIIE%s\n%s\n-----END PRIVATE KEY-----\nValueError: not a certificate",
}


@pytest.mark.parametrize("leak", LEAKS.values(), ids=LEAKS)
def test_secrets_are_replaced(leak: str) -> None:
    text = leak.replace("%s", CANARY)
    found = redacted(text)
    assert REDACTED in found
    assert CANARY not in found
    assert "AKIA" not in found
    assert found == redacted(found)


@pytest.mark.parametrize(
    "text",
    [
        'persistentvolumeclaim "runs" not found; create it in namespace default',
        'secret "registry" not found',
        "Unable to retrieve some image pull secrets (registry); attempting to pull the image may not succeed.",
        "update 12, shard 3: ValueError: too many values to unpack (expected 2), token 7 of 12",
        'File "/app/my_tokens.py", line 3, in <module>',
        "https://example.com:8080/path, tls://digits-scheduler.default.svc:8786",
        "exit code 137: killed; memory 4Gi, limit 4Gi",
        "basic training is over",
        "automountServiceAccountToken: true; remove it",
    ],
)
def test_other_texts_are_left_as_they_are(text: str) -> None:
    assert text == redacted(text)


@given(st.text(st.sampled_from("ab:=@/.-_ \"'\n") | st.characters(codec="utf-8"), max_size=4096))
def test_any_text_is_redacted_in_no_time(text: str) -> None:
    found = redacted(text)
    assert found == redacted(found)
