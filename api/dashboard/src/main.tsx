import { QueryClient, QueryClientProvider } from "@tanstack/react-query";
import { StrictMode } from "react";
import { createRoot, type Root } from "react-dom/client";
import { ApiError } from "./api/client";
import { startLive } from "./api/live";
import { App } from "./app";
import { LoginPage } from "./pages/login";
import { show } from "./prefs";
import { Router } from "./router";
import { loadSession } from "./session";
import "./styles/tokens.css";
import "./styles/base.css";
import "./styles/parts.css";
import "./styles/pages.css";

show();

const client = new QueryClient({
  defaultOptions: {
    queries: {
      staleTime: 1000,
      retry: (count, error) => !(error instanceof ApiError && error.status >= 400 && error.status < 500) && count < 2,
      retryDelay: (attempt) => 500 * 2 ** attempt,
      refetchOnWindowFocus: true,
    },
  },
});
const AGAIN_MS = 2000;
const isUnknown = (error: unknown) => error instanceof ApiError && error.status === 401;
const container = document.getElementById("root");
if (container) void begin(createRoot(container));

/** Nothing is asked for before it is known who asks. An API that is away is told by the pages, which try again. */
async function begin(root: Root): Promise<void> {
  try {
    await loadSession();
  } catch (error) {
    if (isUnknown(error)) return root.render(<StrictMode><LoginPage /></StrictMode>);
    askAgain();
  }
  startLive(client);
  root.render(
    <StrictMode>
      <QueryClientProvider client={client}>
        <Router>
          <App />
        </Router>
      </QueryClientProvider>
    </StrictMode>,
  );
}

function askAgain(): void {
  setTimeout(() => void loadSession().catch((error: unknown) => (isUnknown(error) ? location.reload() : askAgain())), AGAIN_MS);
}
