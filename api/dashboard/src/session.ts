// Who is logged in to this browser, and what they may.
import { configure, get, send, type Schemas } from "./api/client";
import { currentPrefs } from "./prefs";

export type Session = Schemas["Session"];

let session: Session | null = null;

/** Ask who is logged in; rejects with a 401 when nobody is. From then on a login that ends leads back to the login. */
export async function loadSession(): Promise<Session> {
  const found = await get("/session");
  session = found;
  configure({
    actor: () => currentPrefs().actor,
    roles: () => (found.local ? currentPrefs().roles : ""),
    csrfToken: () => found.csrf_token,
    onUnauthorized: () => location.reload(),
  });
  return found;
}

export function currentSession(): Session | null {
  return session;
}

/** The name in the record: with the local token whoever they say they are, otherwise the token's holder. */
export function actorOf(prefs: { actor: string }): string {
  return session && !session.local ? session.name : prefs.actor;
}

/** Where `headrace dev` is, which starts another worker. */
export const canCrash = (): boolean => Boolean(session?.can_crash);

export type Scope = "read" | "operate" | "approve" | "admin";

/** Why whoever is logged in may not do what needs this scope; the API says the same with a 403. */
export function lacks(scope: Scope): string | undefined {
  return !session || session.scopes.includes(scope) ? undefined : `${session.name} lacks the scope ${scope} that this needs`;
}

/** Whom a decision counts for: their name and roles, as the API knows them. */
export function rolesOf(prefs: { roles: string }): string[] {
  return session && !session.local ? session.roles : prefs.roles.split(",").map((role) => role.trim()).filter(Boolean);
}

export async function logIn(token: string): Promise<void> {
  await send({ method: "POST", path: "/login", body: { token } });
  location.reload();
}

export async function logOut(): Promise<void> {
  await send({ method: "POST", path: "/logout" });
  location.reload();
}
