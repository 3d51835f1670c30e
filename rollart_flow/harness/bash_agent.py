"""The program of the agent "bash": it asks a chat endpoint, and runs what the answers call.

It needs nothing but the standard library of Python 3.9, so that it runs in every box.

    python3 bash_agent.py TURNS < instruction

OPENAI_BASE_URL, OPENAI_API_KEY and OPENAI_MODEL say where and whom it asks. It ends with an answer
that says done, after some answers in a row that call nothing, or after its turns.
"""

import json
import os
import subprocess
import sys
import urllib.request

SYSTEM = (
    "You are a software engineer. Solve the task by changing files in the current folder. Call "
    "bash in every turn. Say done when the task is solved. There is no network."
)
TOOL = {
    "type": "function",
    "function": {
        "name": "bash",
        "description": "Run a command of bash in a new shell and return what it prints.",
        "parameters": {
            "type": "object",
            "properties": {"command": {"type": "string"}},
            "required": ["command"],
        },
    },
}
LONGEST = 10_000
"""Characters of a command's output that the policy reads."""
IDLE = 3
"""Answers in a row without a call after which it ends."""
COMMAND_S = 60.0
ANSWER_S = 3600.0


def ask(messages: "list[dict[str, object]]") -> "dict[str, object]":
    """Return the answer to a conversation, as a message."""
    body = {"model": os.environ["OPENAI_MODEL"], "messages": messages, "tools": [TOOL]}
    request = urllib.request.Request(
        os.environ["OPENAI_BASE_URL"] + "/chat/completions",
        data=json.dumps(body).encode(),
        headers={
            "Content-Type": "application/json",
            "Authorization": "Bearer " + os.environ["OPENAI_API_KEY"],
        },
    )
    with urllib.request.urlopen(request, timeout=ANSWER_S) as answer:
        message: dict[str, object] = json.load(answer)["choices"][0]["message"]
    return message


def run(arguments: str) -> str:
    """Run the command that a call names, and return what it prints."""
    try:
        line = ["/bin/bash", "-c", json.loads(arguments)["command"]]
        done = subprocess.run(
            line, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL,
            timeout=COMMAND_S, check=False,
        )  # fmt: skip
    except (ValueError, KeyError, TypeError) as error:
        return f"the call cannot be made: {error!r}"
    except subprocess.TimeoutExpired:
        return f"[killed after {COMMAND_S:g} s]"
    text = done.stdout.decode(errors="replace")
    if len(text) > LONGEST:
        text = text[: LONGEST // 2] + "\n[...]\n" + text[-LONGEST // 2 :]
    return text + (f"[exit code {done.returncode}]" if done.returncode else "")


def main(turns: int) -> None:
    """Work at the instruction of standard input."""
    messages: list[dict[str, object]] = [
        {"role": "system", "content": SYSTEM},
        {"role": "user", "content": sys.stdin.read()},
    ]
    idle = 0
    for _ in range(turns):
        answer = ask(messages)
        messages.append(answer)
        calls: object = answer.get("tool_calls")
        for call in calls if isinstance(calls, list) else ():
            said = run(call["function"]["arguments"])
            messages.append({"role": "tool", "tool_call_id": call["id"], "content": said})
        idle = 0 if calls else idle + 1
        if idle:
            if idle == IDLE or "done" in str(answer.get("content")).lower():
                return
            messages.append({"role": "user", "content": "Call bash, or say done."})


if __name__ == "__main__":
    main(int(sys.argv[1]))
