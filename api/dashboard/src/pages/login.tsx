// What the console shows while it is not known who looks at it.
import { useState } from "react";
import { logIn } from "../session";
import { Button, Failure, Field, Notice } from "../ui/parts";

export function LoginPage() {
  const [token, setToken] = useState("");
  const [error, setError] = useState<unknown>(null);
  const [isSending, setSending] = useState(false);
  const submit = async () => {
    setSending(true);
    setError(null);
    try {
      await logIn(token.trim());
    } catch (e) {
      setError(e);
      setSending(false);
    }
  };
  return (
    <main id="main" className="login">
      <h1>Log in to Headrace</h1>
      <form
        onSubmit={(event) => {
          event.preventDefault();
          if (token.trim() && !isSending) void submit();
        }}
      >
        <Field label="API token" hint="It is sent to this server once, and not kept in the browser.">
          {(id) => <input id={id} type="password" autoComplete="off" value={token} maxLength={200} onChange={(event) => setToken(event.target.value)} autoFocus />}
        </Field>
        <Button type="submit" kind="primary" disabled={!token.trim() || isSending}>Log in</Button>
      </form>
      {error !== null && <Failure error={error} />}
      <Notice tone="idle" icon="person">On the machine of <code>headrace dev</code>, <code>headrace login</code> prints a link that logs in without a token.</Notice>
    </main>
  );
}
