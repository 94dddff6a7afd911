"""Ed25519 signatures over receipts' digests: an in-toto Statement in a DSSE envelope.

The cryptography is pyca/cryptography's and the envelope securesystemslib's; here is only what is said
and how strictly it is read back. docs/signatures.md says what a signature proves and what it does not.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import rfc8785
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
    load_pem_private_key,
    load_pem_public_key,
)
from pydantic import Field, ValidationError
from securesystemslib.dsse import Envelope
from securesystemslib.exceptions import VerificationError
from securesystemslib.signer import CryptoSigner, SSlibKey  # type: ignore[attr-defined]  # not re-exported

from llm_backend.errors import EncoreError, SignatureInvalid
from llm_backend.exported import Exported
from llm_backend.receipt import FORMAT, Frozen

PAYLOAD_TYPE = "application/vnd.in-toto+json"
STATEMENT_TYPE = "https://in-toto.io/Statement/v1"
PREDICATE_TYPE = "urn:encore:receipts:1"

_Hex = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]


@dataclass(frozen=True, slots=True)
class Signed:
    """One receipt a signature speaks for."""

    digest: str
    runs_digest: str | None = None
    """Of the runs beside the receipt, where the file had any."""

    @classmethod
    def of(cls, exported: Exported) -> Signed:
        return cls(exported.digest, exported.runs_digest)


class _Sha256(Frozen):
    sha256: _Hex


class _Annotations(Frozen):
    runs_digest: str


class _Subject(Frozen):
    name: str
    digest: _Sha256
    annotations: _Annotations | None = None


class _Predicate(Frozen):
    receipt_format: Literal[1]


class _Statement(Frozen):
    type: Annotated[Literal["https://in-toto.io/Statement/v1"], Field(alias="_type")]
    subject: tuple[_Subject, ...]
    predicate_type: Annotated[Literal["urn:encore:receipts:1"], Field(alias="predicateType")]
    predicate: _Predicate


class _Signature(Frozen):
    keyid: str
    sig: str


class _Envelope(Frozen):
    payload: str
    payload_type: Annotated[str, Field(alias="payloadType")]
    signatures: tuple[_Signature, ...]


def new_key() -> tuple[bytes, bytes]:
    """A new Ed25519 key pair as PEM: the private key (PKCS #8, not encrypted), the public one."""
    private = Ed25519PrivateKey.generate()
    public = private.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
    return private.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()), public


def private_key(pem: bytes) -> Ed25519PrivateKey:
    """The private key in a PEM file. Raises `EncoreError`."""
    try:
        key = load_pem_private_key(pem, None)
    except (TypeError, ValueError, UnsupportedAlgorithm):  # TypeError: it is encrypted
        key = None
    if not isinstance(key, Ed25519PrivateKey):
        raise EncoreError(
            "The key is not an unencrypted Ed25519 private key in PEM.", "Make one with encore keygen."
        )
    return key


def public_key(pem: bytes) -> Ed25519PublicKey:
    """The public key in a PEM file. Raises `EncoreError`."""
    try:
        key = load_pem_public_key(pem)
    except (ValueError, UnsupportedAlgorithm):
        key = None
    if not isinstance(key, Ed25519PublicKey):
        raise EncoreError(
            "The key is not an Ed25519 public key in PEM.", "Use the .pub file that encore keygen wrote."
        )
    return key


def key_id(key: Ed25519PublicKey) -> str:
    """The SHA-256 that names a public key in envelopes and reports, 64 hexadecimal digits."""
    return str(SSlibKey.from_crypto(key).keyid)


def sign(key: Ed25519PrivateKey, receipts: Sequence[Signed]) -> bytes:
    """The envelope, one line of canonical JSON, in which `key` signs these receipts."""
    statement: dict[str, Any] = {
        "_type": STATEMENT_TYPE,
        "subject": [_subject(receipt) for receipt in receipts],
        "predicateType": PREDICATE_TYPE,
        "predicate": {"receipt_format": FORMAT},
    }
    envelope = Envelope(rfc8785.dumps(statement), PAYLOAD_TYPE, {})
    envelope.sign(CryptoSigner(key))
    return rfc8785.dumps(envelope.to_dict()) + b"\n"


def verify(envelope: bytes, key: Ed25519PublicKey) -> tuple[Signed, ...]:
    """The receipts that `key` signed in this envelope, in its order.

    (1) The text is a DSSE envelope with an in-toto payload, spelled as `sign` spells it, so that no byte
    of it can change unnoticed; (2) `key` signed the payload; (3) the payload is a statement about
    receipts of this format. Whether a file holds those receipts is the caller's step (4). Raises
    `SignatureInvalid`.
    """
    try:
        written = _Envelope.model_validate_json(envelope, strict=True)
        read = Envelope.from_dict(written.model_dump(by_alias=True))
        respelled = rfc8785.dumps(read.to_dict()) != envelope.rstrip(b"\r\n")
    except (ValueError, KeyError, TypeError):
        raise SignatureInvalid("This is not a DSSE envelope as encore sign writes it.", _OTHER) from None
    if respelled or read.payload_type != PAYLOAD_TYPE:
        raise SignatureInvalid("This envelope is not spelled as encore sign writes it.", _OTHER)
    ours = SSlibKey.from_crypto(key)
    if list(read.signatures) != [ours.keyid]:
        raise SignatureInvalid(
            f"The envelope is signed by another key than the given one ({ours.keyid[:12]}).",
            "Ask whoever signed it for the public key.",
        )
    try:
        read.verify([ours], threshold=1)
    except VerificationError:
        raise SignatureInvalid("The signature does not fit what the envelope holds.", _OTHER) from None
    try:
        statement = _Statement.model_validate_json(read.payload, strict=True)
    except ValidationError:
        raise SignatureInvalid(
            f"The key signed something else than Encore receipts of format {FORMAT}.", _OTHER
        ) from None
    return tuple(_signed(subject) for subject in statement.subject)


_OTHER = "Use the envelope as it was handed over."


def _signed(subject: _Subject) -> Signed:
    runs = subject.annotations.runs_digest if subject.annotations else None
    return Signed(f"sha256:{subject.digest.sha256}", runs)


def _subject(receipt: Signed) -> dict[str, Any]:
    hexadecimal = receipt.digest.removeprefix("sha256:")
    subject: dict[str, Any] = {"name": receipt.digest, "digest": {"sha256": hexadecimal}}
    if receipt.runs_digest is not None:
        subject["annotations"] = {"runs_digest": receipt.runs_digest}
    return subject
