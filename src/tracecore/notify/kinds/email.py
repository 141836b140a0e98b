"""E-mail: one message when an incident opens, one when it is over, in one thread."""

from __future__ import annotations

import logging
import smtplib
import ssl
from collections.abc import Mapping
from email.message import EmailMessage
from email.utils import formatdate
from typing import Any, ClassVar

import msgspec

from tracecore.notify.kinds.kind import Kind, MessageRefused, TryAgain
from tracecore.notify.message import NotificationMessage

log = logging.getLogger(__name__)

TIMEOUT_S = 15.0
IMPLICIT_TLS = 465


class Email(Kind, kw_only=True):
    """
    Args:
        to: addresses.
        sender: the address it comes from, `from` in the file.
        smarthost: `host:port` of the mail server.
        require_tls: refuse to send without TLS.
    """

    to: list[str]
    sender: str = msgspec.field(name="from")
    smarthost: str
    auth_username: str = ""
    auth_password: str = ""
    require_tls: bool = True

    SECRETS: ClassVar = ("auth_password",)

    def problem(self) -> str:
        host, _, port = self.smarthost.rpartition(":")
        if not host or not port.isdigit() or not 0 < int(port) < 65536:
            return "smarthost is `host:port`"
        if not self.to or not all(_is_address(address) for address in [*self.to, self.sender]):
            return "`to` and `from` are mail addresses"
        return "auth_username needs auth_password_file" if self.auth_username and not self.auth_password else ""

    def send(self, message: NotificationMessage, before: Mapping[str, Any], uncertain: bool) -> dict[str, Any]:
        mail = EmailMessage()
        domain = self.sender.rpartition("@")[2]
        # The same for every attempt: mail servers and readers drop the second one.
        own = f"<{message.delivery}@{domain}>"
        mail["Message-ID"], mail["Date"] = own, formatdate()
        mail["From"], mail["To"] = self.sender, ", ".join(self.to)
        mail["Subject"] = " ".join(message.title.split())[:300]
        mail["Auto-Submitted"] = "auto-generated"
        first = str(before.get("first", ""))
        if first:
            mail["In-Reply-To"] = mail["References"] = first
        # A template of one's own need not contain the address.
        link = f"\n{message.url}\n" if message.url and message.url not in message.text else ""
        mail.set_content(f"{message.text}\n{link}")
        host, _, port = self.smarthost.rpartition(":")
        try:
            with self._connected(host.strip("[]"), int(port)) as server:
                if self.auth_username:
                    server.login(self.auth_username, self.auth_password)
                refused = server.send_message(mail)
        except smtplib.SMTPRecipientsRefused as error:
            codes = {code for code, _ in error.recipients.values()}
            raise (TryAgain if all(400 <= code < 500 for code in codes) else MessageRefused)(
                f"{host}: recipients refused"
            ) from None
        except smtplib.SMTPResponseException as error:
            text = f"{host} answered {error.smtp_code}"
            raise (TryAgain if 400 <= error.smtp_code < 500 else MessageRefused)(text) from None
        except TimeoutError:
            raise TryAgain(f"{host} did not answer within {TIMEOUT_S:g} s") from None
        except (smtplib.SMTPException, OSError) as error:
            raise TryAgain(f"{host}: {type(error).__name__}") from None
        if refused:
            # The others have it: trying again would send it to them twice.
            log.warning("%s took a mail, but not for %s", host, ", ".join(sorted(refused)))
        return {"first": first or own}

    def _connected(self, host: str, port: int) -> smtplib.SMTP:
        """Connect, with TLS where the server offers it; on port 465 from the beginning, as in Alertmanager."""
        if port == IMPLICIT_TLS:
            return smtplib.SMTP_SSL(host, port, timeout=TIMEOUT_S, context=ssl.create_default_context())
        server = smtplib.SMTP(host, port, timeout=TIMEOUT_S)
        try:
            server.ehlo()
            if server.has_extn("starttls"):
                server.starttls(context=ssl.create_default_context())
                server.ehlo()
            elif self.require_tls:
                raise MessageRefused(f"{host} offers no TLS; set require_tls: false to send without")
        except BaseException:
            server.close()
            raise
        return server


def _is_address(text: str) -> bool:
    name, at, domain = text.rpartition("@")
    return (
        bool(at and name and domain)
        and text.isprintable()
        and text.isascii()
        and not any(letter in text for letter in " ,;<>\n\r")
    )
