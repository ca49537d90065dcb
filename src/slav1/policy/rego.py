"""A Rego file, evaluated here by the module ``regorus``."""

import json
from typing import Any

from slav1.policy.error import PolicyError

DECISION = "data.slav1.decision.action"
"""Rule that answers with the name of an action."""

AUTOSCALE = "data.training.autoscale.allow"
"""Rule of the published example, which answers true or false."""

_TRACE = "Stack backtrace"
_NO_RULE = "not a valid rule path"


class RegoPolicy:
    """One loaded policy. Evaluating it holds the interpreter's lock as long as it takes."""

    def __init__(self, text: str, name: str, query: str | None) -> None:
        """Loads it.

        Args:
            text: The policy, in Rego v1.
            name: Name of its file, for error texts.
            query: Rule that answers; None chooses one by the policy's package.

        Raises:
            PolicyError: If it can't be loaded, or nothing can evaluate it here.
        """
        try:
            import regorus
        except ImportError as error:
            raise PolicyError(
                f"{name}: nothing here evaluates Rego. Install slav1[policy] (the module "
                "regorus), or name an Open Policy Agent server by its address."
            ) from error
        self._engine = regorus.Engine()
        try:
            self._engine.add_policy(name, text)
        except Exception as error:
            raise PolicyError(f"{name}: this is no Rego policy: {reason_of(error)}.") from error
        packages = list(self._engine.get_packages())
        self.query = query or _query_of(packages, name)
        """Rule that answers."""
        if not any(_is_in(self.query, each) or _is_in(each, self.query) for each in packages):
            raise PolicyError(
                f"{name}: it has no package for {self.query}; it has {', '.join(packages)}."
            )
        if not self._has_rule(packages):
            raise PolicyError(
                f"{name}: it has no rule {self.query}, so it would never decide. Is its name "
                "written as in policy.query?"
            )

    def value(self, document: str) -> Any:
        """Returns what the rule says about an input document, as JSON text; None if it is
        undefined.

        Raises:
            PolicyError: If it can't be evaluated.
        """
        try:
            self._engine.set_input_json(document)
            # Not eval_rule: it takes an undefined rule for an error.
            result = json.loads(self._engine.eval_query_as_json(self.query)).get("result") or []
            return result[0]["expressions"][0]["value"] if result else None
        except Exception as error:
            raise PolicyError(f"It can't be evaluated: {reason_of(error)}.") from error

    def _has_rule(self, packages: list[str]) -> bool:
        """Whether the query names a rule, a part of what one says, or a whole package."""
        if any(_is_in(each, self.query) for each in packages):
            return True
        self._engine.set_input_json("{}")
        path = self.query
        while any(_is_in(path, each) for each in packages):
            try:
                self._engine.eval_rule(path)
            except Exception as error:  # noqa: BLE001 - whatever the engine raises
                if _NO_RULE not in str(error):
                    # It is there; what it says is looked at later.
                    return True
            else:
                return True
            path = path.rpartition(".")[0]
        return False


def reason_of(error: BaseException) -> str:
    """The text of an engine's error in one line, without the trace of its own code."""
    text = str(error).partition(_TRACE)[0]
    return " ".join(text.split()).rstrip(".") or type(error).__name__


def _is_in(path: str, other: str) -> bool:
    return f"{path}.".startswith(f"{other}.")


def _query_of(packages: list[str], name: str) -> str:
    for query in (DECISION, AUTOSCALE):
        if query.rpartition(".")[0] in packages:
            return query
    raise PolicyError(
        f"{name}: it has neither package slav1.decision nor training.autoscale but "
        f"{', '.join(packages)}; name the rule that answers with policy.query."
    )
