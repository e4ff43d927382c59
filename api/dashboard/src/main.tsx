import { QueryClient, QueryClientProvider } from "@tanstack/react-query";
import { StrictMode } from "react";
import { createRoot } from "react-dom/client";
import { ApiError, configure } from "./api/client";
import { startLive } from "./api/live";
import { App } from "./app";
import { currentPrefs, show } from "./prefs";
import { Router } from "./router";
import "./styles/tokens.css";
import "./styles/base.css";
import "./styles/parts.css";
import "./styles/pages.css";

show();
configure({ actor: () => currentPrefs().actor });

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
startLive(client);

const root = document.getElementById("root");
if (root) {
  createRoot(root).render(
    <StrictMode>
      <QueryClientProvider client={client}>
        <Router>
          <App />
        </Router>
      </QueryClientProvider>
    </StrictMode>,
  );
}
